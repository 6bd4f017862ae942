'use strict'
require('reflect-metadata')
const { server, step, doing } = require('./steps.cjs')
const orm = require('typeorm')

const User = new orm.EntitySchema({
  name: 'user_account',
  columns: {
    id: { type: Number, primary: true, generated: true },
    name: { type: 'varchar', unique: true },
    meta: { type: 'jsonb', nullable: true },
    tags: { type: 'text', array: true, nullable: true },
    role: { type: 'enum', enum: ['a', 'b'], default: 'a' },
    madeAt: { name: 'made_at', type: 'timestamptz', createDate: true },
    pay: { type: 'numeric', precision: 10, scale: 2, default: 0 },
    version: { type: Number, version: true },
    list: { type: 'simple-array', nullable: true },
    ok: { type: Boolean, default: true },
  },
  relations: { posts: { type: 'one-to-many', target: 'post', inverseSide: 'user' } },
  indices: [{ columns: ['pay'] }],
  checks: [{ expression: 'pay >= 0' }],
})
const Post = new orm.EntitySchema({
  name: 'post',
  columns: {
    id: { type: 'uuid', primary: true, generated: 'uuid' },
    title: { type: 'text' },
    deleted: { type: 'timestamp', deleteDate: true, nullable: true },
  },
  relations: {
    user: { type: 'many-to-one', target: 'user_account', inverseSide: 'posts', onDelete: 'CASCADE', joinColumn: true },
    tags: { type: 'many-to-many', target: 'tag', joinTable: true },
  },
})
const Tag = new orm.EntitySchema({
  name: 'tag',
  columns: { id: { type: 'bigint', primary: true, generated: 'identity' }, name: { type: 'varchar' } },
})
const source = new orm.DataSource({
  type: 'postgres',
  host: server.host,
  port: server.port,
  username: server.user,
  database: server.database,
  entities: [User, Post, Tag],
  installExtensions: false,
  uuidExtension: 'pgcrypto',
  extra: { options: server.options },
})

async function main() {
  await doing('connect', () => source.initialize())
  await doing('synchronize', () => source.synchronize(false))
  const users = source.getRepository('user_account')
  const posts = source.getRepository('post')
  let user
  await step('save', async () => {
    user = await users.save({ name: 'a', meta: { k: 1 }, tags: ['x', 'y'], pay: '3.5', list: ['q', 'r'] })
    return [user.id, user.version, user.role]
  })
  await step('find', async () => {
    const found = await users.findOneBy({ name: 'a' })
    return [found.meta, found.tags, found.role, found.pay, found.list, found.ok, found.madeAt instanceof Date]
  })
  await step('save with relations', async () => {
    const tag = await source.getRepository('tag').save({ name: 'g' })
    return (await posts.save({ title: 't', user, tags: [tag] })).id.length
  })
  await step('find with relations', async () =>
    (await users.find({ relations: { posts: { tags: true } } })).map((one) => [one.name, one.posts[0].tags.length])
  )
  await step('update', async () => {
    user.pay = '9'
    await users.save(user)
    return user.version
  })
  const joined = (names) =>
    users.createQueryBuilder('u').leftJoinAndSelect('u.posts', 'p').where('u.name IN (:...names)', { names })
  await step('query builder, getCount', () => joined(['a']).getCount())
  await step('query builder, paged', async () =>
    (await joined(['a', 'b']).orderBy('u.id').skip(0).take(5).getMany()).length
  )
  await step('upsert', async () => (await users.upsert({ name: 'a', pay: '1' }, ['name'])).identifiers)
  await step('increment', async () => (await users.increment({ name: 'a' }, 'pay', 2)).affected)
  await step('raw query', () => source.query('SELECT name, pay FROM user_account WHERE name = $1', ['a']))
  await step('ILike', () => users.countBy({ name: orm.ILike('A%') }))
  await step('ArrayContains', () => users.countBy({ tags: orm.ArrayContains(['x']) }))
  await step('ArrayOverlap', () => users.countBy({ tags: orm.ArrayOverlap(['x', 'z']) }))
  await step('JsonContains', () => users.countBy({ meta: orm.JsonContains({ k: 1 }) }))
  await step('pessimistic lock', () =>
    source.transaction(
      async (manager) =>
        (await manager.findOne('user_account', { where: { name: 'a' }, lock: { mode: 'pessimistic_write' } })).name
    )
  )
  await step('transaction', () =>
    source.transaction('READ COMMITTED', async (manager) => {
      await manager.save('user_account', { name: 'b' })
      return manager.count('user_account')
    })
  )
  await step('nested transaction', () =>
    source.transaction(async (manager) => {
      await manager.save('user_account', { name: 'n1' })
      await manager.transaction((inner) => inner.save('user_account', { name: 'n2' }))
      return 'both'
    })
  )
  await step('unique violation', async () => {
    try {
      await users.insert({ name: 'a' })
    } catch (error) {
      return [error.code, error.driverError.detail, error.driverError.table, Boolean(error.driverError.constraint)]
    }
  })
  await step('check violation', async () => {
    try {
      await users.insert({ name: 'negative', pay: '-1' })
    } catch (error) {
      return [error.code, error.driverError.table, error.driverError.constraint]
    }
  })
  await step('soft delete', async () => {
    await posts.softDelete({ title: 't' })
    return [await posts.count(), await posts.count({ withDeleted: true })]
  })
  await step('delete', async () => (await users.delete({ name: 'b' })).affected)
  const runner = source.createQueryRunner()
  await step('introspection', async () => {
    const table = await runner.getTable('user_account')
    return table.columns.map((one) => [one.name, one.isNullable, one.isPrimary, one.isUnique, one.isArray, one.isGenerated])
  })
  await step('introspection of checks', async () =>
    (await runner.getTable('user_account')).checks.map((one) => one.name)
  )
  const column = (type) => new orm.TableColumn({ name: 'more', type, isNullable: true, default: '5' })
  await doing('add column', () => runner.addColumn('user_account', column('int')))
  await doing('change column', () => runner.changeColumn('user_account', 'more', column('bigint')))
  await doing('rename column', () => runner.renameColumn('user_account', 'more', 'most'))
  await doing('drop column', () => runner.dropColumn('user_account', 'most'))
  await runner.release()
  await doing('drop database', () => source.dropDatabase())
  await source.destroy()
}

main()
