'use strict'
const { server, schema: home, step, doing } = require('./steps.cjs')
const { Sequelize, DataTypes, Op, Transaction, fn, col } = require('sequelize')

const sequelize = new Sequelize(server.database, server.user, '', {
  host: server.host,
  port: server.port,
  dialect: 'postgres',
  logging: false,
  schema: home,
  dialectOptions: { options: server.options },
})
const User = sequelize.define('User', {
  name: { type: DataTypes.STRING, unique: true, allowNull: false },
  age: DataTypes.INTEGER,
  meta: DataTypes.JSONB,
  tags: DataTypes.ARRAY(DataTypes.STRING),
  role: { type: DataTypes.ENUM('a', 'b'), defaultValue: 'a' },
  pay: DataTypes.DECIMAL(10, 2),
  blob: DataTypes.BLOB,
  day: DataTypes.DATEONLY,
  big: DataTypes.BIGINT,
  ratio: DataTypes.DOUBLE,
})
const Post = sequelize.define('Post', { title: DataTypes.TEXT }, { paranoid: true, indexes: [{ fields: ['title'] }] })
const Tag = sequelize.define('Tag', { name: DataTypes.STRING })
User.hasMany(Post, { onDelete: 'CASCADE' })
Post.belongsTo(User)
Post.belongsToMany(Tag, { through: 'PostTag' })
Tag.belongsToMany(Post, { through: 'PostTag' })

async function main() {
  await doing('authenticate', () => sequelize.authenticate())
  await step('databaseVersion', async () => (await sequelize.databaseVersion()).split('.')[0])
  await doing('sync', () => sequelize.sync({ force: true }))
  await step('create', async () => {
    const user = await User.create({
      name: 'a',
      age: 3,
      meta: { k: { z: 1 } },
      tags: ['x', 'y'],
      pay: '3.50',
      blob: Buffer.from([1, 2]),
      day: '2026-01-02',
      big: '9007199254740993',
      ratio: 1.5,
    })
    return [user.id, user.tags, user.role]
  })
  await step('findOne', async () => {
    const user = await User.findOne({ where: { name: 'a' } })
    const { age, meta, tags, role, pay, blob, day, big, ratio, createdAt } = user
    return [age, meta, tags, role, pay, blob, day, big, ratio, createdAt instanceof Date]
  })
  await step('bulkCreate', async () =>
    (await User.bulkCreate([{ name: 'b', age: 1 }, { name: 'c', age: 2 }])).map((user) => user.id)
  )
  await step('upsert', async () => (await User.upsert({ name: 'a', age: 10 }, { conflictFields: ['name'] }))[0].age)
  await step('bulkCreate, updateOnDuplicate', async () => {
    const options = { updateOnDuplicate: ['age'], conflictAttributes: ['name'] }
    await User.bulkCreate([{ name: 'b', age: 7 }], options)
    return (await User.findOne({ where: { name: 'b' } })).age
  })
  await step('many to many', async () => {
    const post = await Post.create({ title: 'p1', UserId: 1 })
    await post.addTag(await Tag.create({ name: 't1' }))
    return (await post.getTags()).length
  })
  await step('include', async () =>
    (await User.findAll({ include: [{ model: Post, include: Tag }], order: [['id', 'ASC']] })).map((user) => [
      user.name,
      user.Posts.map((post) => post.Tags.length),
    ])
  )
  await step('findAndCountAll', async () => {
    const found = await User.findAndCountAll({ include: Post, limit: 2, distinct: true, order: [['id', 'ASC']] })
    return [found.count, found.rows.length]
  })
  await step('a path of json', () => User.count({ where: { 'meta.k.z': 1 } }))
  await step('Op.contains of json', () => User.count({ where: { meta: { [Op.contains]: { k: { z: 1 } } } } }))
  await step('Op.contains of an array', () => User.count({ where: { tags: { [Op.contains]: ['x'] } } }))
  await step('Op.overlap', () => User.count({ where: { tags: { [Op.overlap]: ['x', 'q'] } } }))
  await step('Op.any', () => User.count({ where: { name: { [Op.any]: ['a', 'b'] } } }))
  await step('Op.iLike', () => User.count({ where: { name: { [Op.iLike]: 'A%' } } }))
  await step('Op.iRegexp', () => User.count({ where: { name: { [Op.iRegexp]: '^A' } } }))
  await step('group', () =>
    User.findAll({
      attributes: ['role', [fn('COUNT', col('id')), 'n'], [fn('SUM', col('age')), 's']],
      group: ['role'],
      raw: true,
    })
  )
  await step('increment, reload', async () => {
    const user = await User.findByPk(1)
    await user.increment('age', { by: 2 })
    return (await user.reload()).age
  })
  await step('update, returning', async () =>
    (await User.update({ age: 5 }, { where: { name: 'b' }, returning: true }))[1].length
  )
  await step('findCreateFind', async () => (await User.findCreateFind({ where: { name: 'd' }, defaults: { age: 1 } }))[1])
  await step('transaction with a lock', () =>
    sequelize.transaction(async (transaction) => {
      const user = await User.findOne({ where: { name: 'a' }, lock: transaction.LOCK.UPDATE, transaction })
      user.age = 99
      return (await user.save({ transaction })).age
    })
  )
  await step('isolation level', () =>
    sequelize.transaction({ isolationLevel: Transaction.ISOLATION_LEVELS.READ_COMMITTED }, (transaction) =>
      User.count({ transaction })
    )
  )
  await step('nested transaction', () =>
    sequelize.transaction(async (transaction) => {
      await User.create({ name: 'n1' }, { transaction })
      await sequelize.transaction({ transaction }, (inner) => User.create({ name: 'n2' }, { transaction: inner }))
      return 'both'
    })
  )
  await step('unique violation', async () => {
    try {
      await User.create({ name: 'a' })
    } catch (error) {
      return [error.name, error.fields, error.errors.length]
    }
  })
  await step('not null violation', () =>
    sequelize.query('INSERT INTO "Users" (name, "createdAt", "updatedAt") VALUES (NULL, now(), now())')
  )
  await step('paranoid destroy', async () => {
    await (await Post.findByPk(1)).destroy()
    return [await Post.count(), await Post.count({ paranoid: false })]
  })
  await step('restore', async () => {
    await Post.restore({ where: { id: 1 } })
    return Post.count()
  })
  const schema = sequelize.getQueryInterface()
  const users = { tableName: 'Users', schema: home }
  await step('showAllTables', async () => (await schema.showAllTables()).map((one) => one.tableName || one).sort())
  await step('describeTable', async () =>
    Object.entries(await schema.describeTable(users)).map(([name, one]) => [name, one.allowNull, one.primaryKey])
  )
  await step('showIndex', async () =>
    (await schema.showIndex({ tableName: 'Posts', schema: home })).map((one) => [one.unique, one.primary, one.fields.map((field) => field.attribute)])
  )
  await doing('addColumn', () => schema.addColumn(users, 'extra', { type: DataTypes.STRING, defaultValue: 'q' }))
  await doing('changeColumn', () => schema.changeColumn(users, 'extra', { type: DataTypes.TEXT, allowNull: true }))
  await doing('renameColumn', () => schema.renameColumn(users, 'extra', 'more'))
  await doing('addIndex', () => schema.addIndex(users, ['age'], { name: 'by_age' }))
  await doing('removeIndex', () => schema.removeIndex(users, 'by_age'))
  await doing('addConstraint', () => schema.addConstraint(users, { fields: ['age', 'more'], type: 'unique', name: 'both' }))
  await doing('removeConstraint', () => schema.removeConstraint(users, 'both'))
  await doing('removeColumn', () => schema.removeColumn(users, 'more'))
  await doing('truncate', () => sequelize.query('TRUNCATE "PostTag" RESTART IDENTITY CASCADE'))
  await sequelize.close()
}

main()
