// Runs statements with node-postgres and postgres.js; prints the names and rows of each.
// Arguments: host, port, user, database, and a file with a JSON list of [text, parameters].

const fs = require('fs');
const [, , host, port, user, database, file] = process.argv;
const statements = JSON.parse(fs.readFileSync(file));

const main = async () => {
  const { Client } = require('pg');
  const found = { 'node-postgres': [], 'postgres.js': [] };
  const client = new Client({ host, port: Number(port), user, database });
  await client.connect();
  for (const [text, values] of statements) {
    const { fields, rows } = await client.query({ text, values, rowMode: 'array' });
    found['node-postgres'].push([fields.map((field) => field.name), rows]);
  }
  await client.end();
  const sql = require('postgres')({ host, port: Number(port), user, database, max: 1 });
  for (const [text, values] of statements) {
    const rows = await sql.unsafe(text, values, { prepare: true }).values();
    found['postgres.js'].push([rows.columns.map((column) => column.name), [...rows]]);
  }
  await sql.end();
  console.log(JSON.stringify(found));
};

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
