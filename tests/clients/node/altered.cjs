// Runs prepared statements again behind ALTER TABLE, on the same connection and on another, outside of
// transactions and inside, with node-postgres and postgres.js; prints the rows that each gives.
// Arguments: host, port, user, database, and a statement to run behind CREATE TABLE, or "".

const [, , host, port, user, database, prepare] = process.argv;
const CHANGES = [
  'ALTER TABLE altered ALTER a TYPE real',
  'ALTER TABLE altered ADD COLUMN c int',
  'ALTER TABLE altered DROP COLUMN b',
  'ALTER TABLE altered RENAME COLUMN a TO aa',
];
const QUERIES = {
  all: 'SELECT * FROM altered WHERE id = $1',
  write: 'UPDATE altered SET id = $1 WHERE id = 1 RETURNING *',
};

const nodePostgres = async () => {
  const { Client } = require('pg');
  const client = new Client({ host, port: Number(port), user, database });
  await client.connect();
  return {
    // By name and as it is: node-postgres prepares a query that has a name.
    run: async (name, text, values) => (await client.query({ name, text, values })).rows,
    command: (text) => client.query(text),
    end: () => client.end(),
  };
};

const postgresJs = async () => {
  const sql = require('postgres')({ host, port: Number(port), user, database, max: 1, onnotice: () => {} });
  return {
    run: async (name, text, values) => [...(await sql.unsafe(text, values, { prepare: true }))],
    command: (text) => sql.unsafe(text).simple(),
    end: () => sql.end(),
  };
};

const twice = async (library, found) => {
  for (const [name, text] of Object.entries(QUERIES)) {
    for (let time = 0; time < 2; time++) {
      try {
        found.push(await library.run(name, text, [1]));
      } catch (error) {
        found.push(error.code);
      }
    }
  }
};

// Each change and what the statements give then; in a transaction an error ends it.
const seen = async (connect, origin, begins) => {
  const library = await connect();
  const other = await connect();
  const change = origin === 'same' ? library : other;
  await other.command('CREATE TABLE altered (id int PRIMARY KEY, a int, b text)');
  if (prepare) await other.command(prepare);
  await other.command("INSERT INTO altered VALUES (1, 2, 'x')");
  const found = [];
  await twice(library, found);
  for (const text of CHANGES) {
    if (begins) await library.command('BEGIN');
    await change.command(text);
    await twice(library, found);
    if (begins) await library.command('COMMIT');
    // Behind an error the transaction has undone the change.
    if (begins) await twice(library, found);
  }
  if (prepare) await other.command('DROP STREAM altered_stream CASCADE');
  await other.command('DROP TABLE altered');
  await library.end();
  await other.end();
  return found;
};

const main = async () => {
  const found = {};
  for (const [name, connect] of [['node-postgres', nodePostgres], ['postgres.js', postgresJs]]) {
    found[`${name} other`] = await seen(connect, 'other', false);
    found[`${name} same`] = await seen(connect, 'same', false);
    found[`${name} transaction`] = await seen(connect, 'same', true);
  }
  console.log(JSON.stringify(found));
};

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
