// Uses a shop through node-postgres and postgres.js and prints what each saw, as one JSON object.

const [, , library, host, port, table, group] = process.argv;
const database = { host, port: Number(port), database: "shop", user: "ducktail" };

const ROW = "SELECT id, name, email, created, balance, meta, tags, uid, photo, active FROM app.customers WHERE id = ";
const READ = `SELECT lsn, key FROM STREAM orders_stream CONSUMER GROUP ${group} LIMIT `;
const COMMIT = `COMMIT OFFSETS ON orders_stream CONSUMER GROUP ${group}`;
const SLOW = "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8";

const shown = (row) => ({ ...row, photo: row.photo && row.photo.toString("hex") });

async function code(work) {
  try {
    await work();
    return "no error";
  } catch (error) {
    return error.code;
  }
}

async function nodePostgres() {
  const { Client, Pool } = require("pg");
  const Cursor = require("pg-cursor");
  const client = new Client({ ...database, statement_timeout: 20000, application_name: "shop.js" });
  const notices = [];
  client.on("notice", (notice) => notices.push(notice.code));
  await client.connect();
  const seen = {};
  seen.simple = shown((await client.query(ROW + "1")).rows[0]);
  seen.prepared = shown((await client.query({ name: "row", text: ROW + "$1", values: [1] })).rows[0]);
  seen.types = (await client.query(ROW + "0")).fields.map((field) => field.dataTypeID);
  const insert = `INSERT INTO ${table} VALUES ($1, $2) RETURNING i, txt`;
  const inserted = await client.query(insert, [1, "it's \\ ☃"]);
  seen.inserted = [inserted.command, inserted.rowCount, inserted.rows];
  await client.query("BEGIN");
  await client.query(`DELETE FROM ${table}`);
  await client.query("ROLLBACK");
  seen.several = (await client.query(`SELECT count(*) AS n FROM ${table}; SELECT 'x' AS y`)).map((one) => one.rows);
  const values = [["a", null], { k: [1] }, new Date("2026-01-02T03:04:05.678Z"), Buffer.from([0, 255]), null];
  seen.parameters = (
    await client.query(
      "SELECT $1::text[] AS a, $2::json AS j, $3::timestamptz AS t, $4::bytea AS b, $5::int AS n", values)
  ).rows.map((row) => ({ ...row, b: row.b.toString("hex") }));
  const cursor = client.query(new Cursor("SELECT id FROM app.orders WHERE id > $1 ORDER BY id", [10]));
  seen.cursor = [(await cursor.read(2)).length, (await cursor.read(3)).map((row) => row.id)];
  await cursor.close();
  seen.errors = [
    await code(() => client.query("SELECT nowhere FROM app.orders")),
    await code(() => client.query(insert, [1, "again"])),
    await code(() => client.query("SET statement_timeout = 200").then(() => client.query(SLOW))),
  ];
  seen.stream = [];
  for (let time = 0; time < 2; time++) {
    seen.stream.push(...(await client.query(READ + "$1", [2])).rows.map((row) => row.key.id));
    await client.query(COMMIT);
  }
  await client.query("COMMIT");
  await client.query(`LISTEN node_${table}`);
  const told = new Promise((resolve) => client.once("notification", resolve));
  await client.query(`NOTIFY node_${table}, 'said'`);
  seen.notification = (await told).payload;
  seen.notices = notices;
  seen.name = (await client.query("SHOW application_name")).rows[0].application_name;
  await client.end();
  const pool = new Pool({ ...database, max: 3 });
  const found = await Promise.all([1, 2, 3, 4].map((at) => pool.query("SELECT $1::int * 2 AS n", [at])));
  seen.pool = found.map((one) => one.rows[0].n);
  await pool.end();
  return seen;
}

async function postgresJs() {
  const postgres = require("postgres");
  const sql = postgres({ ...database, max: 2, onnotice: () => {} });
  const seen = {};
  seen.row = shown((await sql.unsafe(ROW + "$1", [1]))[0]);
  const rows = [{ i: 1, txt: "it's \\ ☃" }, { i: 2, txt: null }];
  seen.inserted = await sql`INSERT INTO ${sql(table)} ${sql(rows)} RETURNING i, txt`;
  seen.updated = (await sql`UPDATE ${sql(table)} SET txt = ${"u"} WHERE i IN ${sql([1, 2])}`).count;
  seen.parameters = (await sql`SELECT ${["a", null]}::text[] AS a, ${sql.json({ k: [1] })}::json AS j,
    ${new Date("2026-01-02T03:04:05.678Z")}::timestamptz AS t, ${null}::int AS n`)[0];
  seen.errors = [
    await code(() => sql`SELECT nowhere FROM app.orders`),
    await code(() => sql.begin((on) => on`DELETE FROM ${on(table)}`.then(() => on`SELECT * FROM nowhere`))),
  ];
  seen.kept = (await sql`SELECT count(*)::int AS n FROM ${sql(table)}`)[0].n;
  seen.cursor = [];
  await sql`SELECT id FROM app.orders WHERE id < ${8} ORDER BY id`.cursor(3, (part) => {
    seen.cursor.push(part.map((row) => row.id));
  });
  seen.described = (await sql`SELECT id, name FROM app.customers WHERE id = ${1}`.describe()).columns.map(
    (column) => [column.name, column.type]);
  const slow = sql.unsafe(SLOW);
  slow.execute();
  setTimeout(() => slow.cancel(), 200);
  seen.cancelled = await code(() => slow);
  seen.stream = [];
  await sql.reserve().then(async (on) => {
    for (let time = 0; time < 2; time++) {
      seen.stream.push(...(await on.unsafe(READ + "$1", [2])).map((row) => row.key.id));
      await on.unsafe(COMMIT);
    }
    on.release();
  });
  await sql.end();
  return seen;
}

({ "node-postgres": nodePostgres, "postgres.js": postgresJs })[library]().then(
  (seen) => console.log(JSON.stringify(seen)),
  (error) => { console.error(error); process.exit(1); });
