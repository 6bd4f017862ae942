'use strict'
const { server, step, doing } = require('./steps.cjs')
const fs = require('fs')
const os = require('os')
const path = require('path')
const { Pool } = require('pg')
const { drizzle } = require('drizzle-orm/node-postgres')
const { migrate } = require('drizzle-orm/node-postgres/migrator')
const pg = require('drizzle-orm/pg-core')
const orm = require('drizzle-orm')

const mood = pg.pgEnum('mood', ['sad', 'ok'])
const users = pg.pgTable('users', {
  id: pg.serial('id').primaryKey(),
  name: pg.varchar('name', { length: 50 }).notNull().unique(),
  mood: mood('mood').default('ok'),
  meta: pg.jsonb('meta'),
  tags: pg.text('tags').array(),
  made: pg.timestamp('made', { withTimezone: true }).defaultNow(),
  n: pg.numeric('n', { precision: 10, scale: 2 }),
  big: pg.bigint('big', { mode: 'bigint' }),
})
const posts = pg.pgTable('posts', {
  id: pg.uuid('id').defaultRandom().primaryKey(),
  userId: pg.integer('user_id').references(() => users.id, { onDelete: 'cascade' }),
  title: pg.text('title'),
})
const usersRelations = orm.relations(users, ({ many }) => ({ posts: many(posts) }))
const postsRelations = orm.relations(posts, ({ one }) => ({
  user: one(users, { fields: [posts.userId], references: [users.id] }),
}))
const pool = new Pool(server)
const db = drizzle(pool, { schema: { users, posts, usersRelations, postsRelations } })

// In the form in which drizzle-kit writes migrations.
const MIGRATION = `DO $$ BEGIN
 CREATE TYPE "public"."mood" AS ENUM('sad', 'ok');
EXCEPTION
 WHEN duplicate_object THEN null;
END $$;
--> statement-breakpoint
CREATE TABLE IF NOT EXISTS "users" (
  "id" serial PRIMARY KEY NOT NULL,
  "name" varchar(50) NOT NULL,
  "mood" "mood" DEFAULT 'ok',
  "meta" jsonb,
  "tags" text[],
  "made" timestamp with time zone DEFAULT now(),
  "n" numeric(10, 2),
  "big" bigint,
  CONSTRAINT "users_name_unique" UNIQUE("name")
);
--> statement-breakpoint
CREATE TABLE IF NOT EXISTS "posts" (
  "id" uuid PRIMARY KEY DEFAULT gen_random_uuid() NOT NULL,
  "user_id" integer,
  "title" text
);
--> statement-breakpoint
DO $$ BEGIN
 ALTER TABLE "posts" ADD CONSTRAINT "posts_user_id_users_id_fk" FOREIGN KEY ("user_id")
  REFERENCES "public"."users"("id") ON DELETE cascade ON UPDATE no action;
EXCEPTION
 WHEN duplicate_object THEN null;
END $$;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS "title_idx" ON "posts" USING btree ("title");`

function migrations() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'drizzle-'))
  fs.mkdirSync(path.join(folder, 'meta'))
  const entry = { idx: 0, version: '7', when: 1700000000000, tag: '0000_first', breakpoints: true }
  const journal = { version: '7', dialect: 'postgresql', entries: [entry] }
  fs.writeFileSync(path.join(folder, 'meta', '_journal.json'), JSON.stringify(journal))
  fs.writeFileSync(path.join(folder, '0000_first.sql'), MIGRATION)
  return folder
}

async function main() {
  const migrationsFolder = migrations()
  await doing('migrate', () => migrate(db, { migrationsFolder }))
  await doing('migrate again', () => migrate(db, { migrationsFolder }))
  const { id, name, meta, tags, n, big } = users
  await step('insert, returning', () =>
    db
      .insert(users)
      .values([
        { name: 'a', meta: { k: [1] }, tags: ['x', 'y'], n: '1.5', big: 9007199254740993n },
        { name: 'b', mood: 'sad' },
      ])
      .returning({ id, name, mood: users.mood, meta, tags, n, big })
  )
  await step('insert with uuid', async () =>
    (await db.insert(posts).values({ userId: 1, title: 't' }).returning())[0].id.length
  )
  await step('select', () => db.select({ id, mood: users.mood }).from(users).where(orm.eq(name, 'a')))
  await step('join', () =>
    db.select({ name, title: posts.title }).from(users).leftJoin(posts, orm.eq(posts.userId, id)).orderBy(id)
  )
  await step('findMany with relations', () =>
    db.query.users.findMany({ columns: { name: true }, with: { posts: { columns: { title: true } } }, orderBy: id })
  )
  await step('findFirst with relations', () =>
    db.query.posts.findFirst({ columns: { title: true }, with: { user: { columns: { name: true } } } })
  )
  await step('onConflictDoUpdate', () =>
    db.insert(users).values({ name: 'a' }).onConflictDoUpdate({ target: name, set: { n: '9' } }).returning({ n })
  )
  await step('onConflictDoNothing', () => db.insert(users).values({ name: 'a' }).onConflictDoNothing().returning({ id }))
  await step('update', () =>
    db.update(users).set({ mood: 'sad' }).where(orm.inArray(name, ['a'])).returning({ mood: users.mood })
  )
  await step('arrayContains', () => db.select({ name }).from(users).where(orm.arrayContains(tags, ['x'])))
  await step('arrayOverlaps', () => db.select({ name }).from(users).where(orm.arrayOverlaps(tags, ['x', 'q'])))
  await step('$count', () => db.$count(users))
  await step('group by', () => db.select({ mood: users.mood, c: orm.count() }).from(users).groupBy(users.mood))
  await step('transaction, for update', () =>
    db.transaction(async (tx) => {
      await tx.insert(users).values({ name: 'c' })
      return (await tx.select().from(users).for('update')).length
    })
  )
  await step('transaction rolled back', () =>
    db.transaction(async (tx) => {
      await tx.insert(users).values({ name: 'd' })
      tx.rollback()
    })
  )
  await step('nested transaction', () =>
    db.transaction(async (tx) => {
      await tx.insert(users).values({ name: 'e' })
      await tx.transaction((inner) => inner.insert(users).values({ name: 'f' }))
      return 'both'
    })
  )
  await step('prepared', () =>
    db.select({ name }).from(users).where(orm.eq(id, orm.sql.placeholder('id'))).prepare('by_id').execute({ id: 1 })
  )
  await step('unique violation', async () => {
    try {
      await db.insert(users).values({ name: 'a' })
    } catch (error) {
      return [error.cause.code, error.cause.table, error.cause.detail]
    }
  })
  await step('delete, returning', () => db.delete(users).where(orm.gt(id, 1)).returning({ name }))
  await doing('raw statements', () => db.execute(orm.sql`DROP TABLE posts, users`))
  await pool.end()
  fs.rmSync(migrationsFolder, { recursive: true })
}

main()
