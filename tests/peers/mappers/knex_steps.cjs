'use strict'
const { server, step, doing } = require('./steps.cjs')
const fs = require('fs')
const os = require('os')
const path = require('path')
const knex = require('knex')({ client: 'pg', connection: server, pool: { min: 1, max: 3 } })

async function main() {
  await doing('create tables', () =>
    knex.schema
      .createTable('authors', (table) => {
        table.increments('id')
        table.string('name', 100).notNullable().unique()
        table.timestamps(true, true)
        table.jsonb('meta')
        table.specificType('tags', 'text[]')
        table.enu('kind', ['a', 'b']).defaultTo('a')
        table.decimal('pay', 10, 2).defaultTo(0)
        table.boolean('ok').defaultTo(true)
        table.uuid('u').defaultTo(knex.fn.uuid())
        table.comment('those who write')
      })
      .createTable('books', (table) => {
        table.bigIncrements('id')
        table.integer('author_id').unsigned().references('id').inTable('authors').onDelete('CASCADE').index()
        table.text('title')
        table.date('d')
        table.binary('b')
        table.double('w')
        table.unique(['author_id', 'title'])
      })
  )
  await step('has table', () => knex.schema.hasTable('authors'))
  await step('has column', () => knex.schema.hasColumn('authors', 'meta'))
  await step('insert several', () =>
    knex('authors')
      .insert([{ name: 'x', meta: { a: 1 }, tags: ['p', 'q'] }, { name: 'y' }])
      .returning(['id', 'name', 'meta', 'tags', 'kind', 'pay', 'ok'])
  )
  await step('insert of all types', () =>
    knex('books')
      .insert({ author_id: 1, title: 't', d: '2026-01-02', b: Buffer.from([0, 1, 255]), w: 1.5 })
      .returning(['id', 'author_id', 'title', 'b', 'w'])
  )
  await step('join', () =>
    knex('books as b').join('authors as a', 'a.id', 'b.author_id').select('a.name', 'b.title').where('a.name', 'x')
  )
  await step('whereJsonPath', () => knex('authors').whereJsonPath('meta', '$.a', '=', 1).select('name'))
  await step('whereJsonSupersetOf', () => knex('authors').whereJsonSupersetOf('meta', { a: 1 }).select('name'))
  await step('jsonExtract', () => knex('authors').jsonExtract('meta', '$.a', 'v').where('id', 1))
  await step('on conflict merge', () =>
    knex('authors').insert({ name: 'x', pay: 5 }).onConflict('name').merge().returning(['id', 'pay'])
  )
  await step('on conflict ignore', async () =>
    (await knex('authors').insert({ name: 'x' }).onConflict('name').ignore()).rowCount
  )
  await step('update with an expression', () =>
    knex('authors').where({ name: 'y' }).update({ pay: knex.raw('pay + 1') }, ['pay'])
  )
  await step('increment', () => knex('authors').where('name', 'y').increment('pay', 2))
  await step('count', () => knex('authors').count('* as c').first())
  await step('transaction, for update', () =>
    knex.transaction(async (trx) => {
      await trx('authors').insert({ name: 'z' })
      return trx('authors').where('name', 'z').forUpdate().first('name')
    })
  )
  await step('transaction rolled back', () =>
    knex.transaction(async (trx) => {
      await trx('authors').insert({ name: 'zz' })
      throw new Error('on purpose')
    })
  )
  await step('nested transaction', () =>
    knex.transaction(async (trx) => {
      await trx('authors').insert({ name: 'n1' })
      await trx.transaction((inner) => inner('authors').insert({ name: 'n2' }))
      return 'both'
    })
  )
  await step('unique violation', async () => {
    try {
      await knex('authors').insert({ name: 'x' })
    } catch (error) {
      return [error.code, error.table, error.detail]
    }
  })
  await step('check violation', async () => {
    try {
      await knex('authors').insert({ name: 'e', kind: 'zzz' })
    } catch (error) {
      return [error.code, error.constraint]
    }
  })
  await step('common table expression', () =>
    knex
      .with('c', knex('authors').select('name'))
      .select('*')
      .from('c')
      .orderBy('name')
      .limit(2)
      .offset(1)
  )
  await step('window function', () => knex('authors').select('name').rowNumber('rn', 'id').orderBy('id'))
  await step('batchInsert', async () => {
    const rows = Array.from({ length: 50 }, (_, at) => ({ author_id: 1, title: `b${at}` }))
    await knex.batchInsert('books', rows, 20)
    return knex('books').count('* as c').first()
  })
  await step('columnInfo', async () => Object.keys(await knex('authors').columnInfo()).length)
  await doing('alter: add, rename, index', () =>
    knex.schema.alterTable('authors', (table) => {
      table.string('extra', 20).defaultTo('q')
      table.renameColumn('meta', 'meta2')
      table.index(['pay'], 'pay_i')
    })
  )
  await doing('alter: type, drop index', () =>
    knex.schema.alterTable('authors', (table) => {
      table.text('extra').alter()
      table.dropIndex(['pay'], 'pay_i')
    })
  )
  await doing('alter: drop column', () => knex.schema.alterTable('authors', (table) => table.dropColumn('extra')))
  await doing('alter: drop unique', () => knex.schema.alterTable('authors', (table) => table.dropUnique(['name'])))
  await doing('alter: drop foreign key', () => knex.schema.alterTable('books', (table) => table.dropForeign('author_id')))
  await doing('alter: set nullable', () => knex.schema.alterTable('authors', (table) => table.setNullable('name')))
  await doing('rename table', () => knex.schema.renameTable('books', 'books2'))
  await doing('view', () =>
    knex.schema.createViewOrReplace('names', (view) => {
      view.columns(['n'])
      view.as(knex('authors').select('name'))
    })
  )
  await step('query of a view', () => knex('names').count('* as c').first())
  await doing('drop view', () => knex.schema.dropView('names'))
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'knex-'))
  fs.writeFileSync(
    path.join(directory, '1_first.js'),
    `exports.up = (knex) => knex.schema.createTable('first', (table) => { table.increments() })
exports.down = (knex) => knex.schema.dropTable('first')`
  )
  await step('migrate.latest', async () => (await knex.migrate.latest({ directory }))[1].length)
  await step('migrate.rollback', async () => (await knex.migrate.rollback({ directory }))[1].length)
  await doing('truncate', () => knex('books2').truncate())
  await step('delete', () => knex('authors').where('name', 'x').del())
  await doing('drop tables', () => 
    knex.schema.dropTable('books2').dropTable('authors').dropTable('knex_migrations').dropTable('knex_migrations_lock')
  )
  await knex.destroy()
  fs.rmSync(directory, { recursive: true })
}

main()
