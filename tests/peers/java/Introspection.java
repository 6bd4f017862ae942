import java.io.PrintWriter;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.Statement;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.List;

/** The calls by which Metabase's sync and query builder use a database, through pgjdbc; an outcome for each. */
public final class Introspection {
  interface Step {
    Object on(Connection connection) throws Exception;
  }

  private final Connection connection;
  private final PrintWriter out;
  private String schema;

  private Introspection(Connection connection, PrintWriter out) {
    this.connection = connection;
    this.out = out;
  }

  public static void main(String[] arguments) throws Exception {
    String url =
        "jdbc:postgresql://%s:%s/%s?user=%s&ApplicationName=Metabase"
            .formatted(
                System.getenv("PGHOST"),
                System.getenv("PGPORT"),
                System.getenv("PGDATABASE"),
                System.getenv("PGUSER"));
    try (Connection connection = DriverManager.getConnection(url);
        PrintWriter out = new PrintWriter(arguments[0])) {
      new Introspection(connection, out).all();
    }
  }

  private void step(String name, Object wanted, Step step) {
    String outcome;
    try {
      Object found = step.on(connection);
      outcome = String.valueOf(found).equals(String.valueOf(wanted)) ? "passed" : found + " instead of " + wanted;
    } catch (Exception error) {
      outcome = String.valueOf(error).replaceAll("\\s+", " ");
    }
    out.println(name + "\t" + outcome);
    out.flush();
  }

  private static List<String> column(ResultSet rows, String name) throws Exception {
    List<String> found = new ArrayList<>();
    while (rows.next()) found.add(rows.getString(name));
    rows.close();
    return found;
  }

  private void run(String text) throws Exception {
    try (Statement statement = connection.createStatement()) {
      statement.execute(text);
    }
  }

  private List<String> asked(String text, String... parameters) throws Exception {
    try (PreparedStatement statement = connection.prepareStatement(text)) {
      for (int at = 0; at < parameters.length; at++) statement.setString(at + 1, parameters[at]);
      List<String> found = new ArrayList<>();
      ResultSet rows = statement.executeQuery();
      while (rows.next()) found.add(rows.getString(1));
      return found;
    }
  }

  private void all() throws Exception {
    step("tables to look at", "", c -> {
      run("CREATE TABLE mb_people (id integer PRIMARY KEY, name text NOT NULL, born date)");
      run("CREATE TABLE mb_orders (id bigint PRIMARY KEY, person integer REFERENCES mb_people (id),"
          + " total numeric(10,2), made timestamptz, extra jsonb, ok boolean)");
      run("CREATE INDEX mb_made ON mb_orders (made)");
      run("CREATE VIEW mb_paid AS SELECT * FROM mb_orders WHERE ok");
      run("COMMENT ON TABLE mb_orders IS 'what was ordered'");
      run("COMMENT ON COLUMN mb_orders.total IS 'with tax'");
      run("INSERT INTO mb_people VALUES (1, 'Ann', '1980-01-02'), (2, 'Bob', NULL)");
      run("INSERT INTO mb_orders VALUES (1, 1, 2.50, '2026-03-01 12:00:00+00', '{\"a\": 1}', true),"
          + " (2, 1, 3.50, '2026-03-02 12:00:00+00', NULL, false)");
      return "";
    });
    schema = connection.getSchema();
    DatabaseMetaData data = connection.getMetaData();
    step("product", "PostgreSQL", c -> data.getDatabaseProductName());
    step("isValid", true, c -> c.isValid(5));
    step("time zone", 1, c -> asked("SHOW TIMEZONE").size());
    step("schemas", true, c -> column(data.getSchemas(), "TABLE_SCHEM").contains(schema));
    step("schemas' rights", true, c ->
        asked("SELECT nspname FROM pg_catalog.pg_namespace WHERE has_schema_privilege(nspname, 'USAGE')").contains(schema));
    step("tables", "[mb_orders, mb_people, mb_paid]", c ->
        column(data.getTables(null, schema, "mb\\_%", new String[] {
            "TABLE", "PARTITIONED TABLE", "VIEW", "FOREIGN TABLE", "MATERIALIZED VIEW"}), "TABLE_NAME"));
    step("remarks", "[what was ordered]", c ->
        column(data.getTables(null, schema, "mb_orders", null), "REMARKS"));
    step("columns", "[id, person, total, made, extra, ok]", c ->
        column(data.getColumns(null, schema, "mb_orders", null), "COLUMN_NAME"));
    step("columns' types", "[int8, int4, numeric, timestamptz, jsonb, bool]", c ->
        column(data.getColumns(null, schema, "mb_orders", null), "TYPE_NAME"));
    step("columns' remarks", "[null, null, with tax, null, null, null]", c ->
        column(data.getColumns(null, schema, "mb_orders", null), "REMARKS"));
    step("primary keys", "[id]", c -> column(data.getPrimaryKeys(null, schema, "mb_orders"), "COLUMN_NAME"));
    step("imported keys", "[person]", c -> column(data.getImportedKeys(null, schema, "mb_orders"), "FKCOLUMN_NAME"));
    step("exported keys", "[mb_orders]", c -> column(data.getExportedKeys(null, schema, "mb_people"), "FKTABLE_NAME"));
    step("indexes", true, c ->
        column(data.getIndexInfo(null, schema, "mb_orders", false, true), "COLUMN_NAME").contains("made"));
    step("foreign keys by information_schema", "[person]", c -> asked(
        "SELECT kcu.column_name FROM information_schema.table_constraints tc"
            + " JOIN information_schema.key_column_usage kcu ON tc.constraint_name = kcu.constraint_name"
            + " AND tc.table_schema = kcu.table_schema"
            + " WHERE tc.constraint_type = 'FOREIGN KEY' AND tc.table_name = ?", "mb_orders"));
    step("tables by pg_class", "[mb_orders, mb_paid, mb_people]", c -> asked(
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON c.relnamespace = n.oid"
            + " LEFT JOIN pg_catalog.pg_stat_user_tables s ON s.relid = c.oid"
            + " WHERE c.relkind IN ('r', 'p', 'v', 'f', 'm') AND c.relname LIKE 'mb!_%' ESCAPE '!'"
            + " AND (has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT'))"
            + " ORDER BY c.relname"));
    step("columns by pg_attribute", "[id, person, total, made, extra, ok]", c -> asked(
        "SELECT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON a.attrelid = c.oid"
            + " LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
            + " LEFT JOIN pg_catalog.pg_description e ON e.objoid = c.oid AND e.objsubid = a.attnum"
            + " WHERE c.relname = ? AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum", "mb_orders"));
    step("enums", "[]", c -> asked(
        "SELECT e.enumlabel FROM pg_type t JOIN pg_enum e ON t.oid = e.enumtypid"
            + " JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typname LIKE 'mb!_%' ESCAPE '!'"));
    step("row privileges", true, c -> asked(
        "SELECT privilege_type FROM information_schema.table_privileges WHERE table_name = ?", "mb_orders")
            .contains("SELECT"));
    step("fingerprint", "[1, 2]", c ->
        asked("SELECT substring(CAST(\"id\" AS text), 1, 1234) FROM \"" + schema + "\".\"mb_orders\" ORDER BY 1 LIMIT 10000"));
    step("question by month", "[2026-03-01 00:00:00]", c -> asked(
        "SELECT CAST(DATE_TRUNC('month', \"made\") AS timestamp)::text FROM \"mb_orders\""
            + " GROUP BY DATE_TRUNC('month', \"made\") ORDER BY DATE_TRUNC('month', \"made\") ASC"));
    step("question by weekday", "[1]", c -> asked(
        "SELECT CAST(extract(dow from \"made\") AS integer) + 1 AS d FROM \"mb_orders\" WHERE extract(day from made) = 1"));
    step("question with parameters", 1, c -> {
      try (PreparedStatement statement = c.prepareStatement(
          "SELECT count(*) FROM \"mb_orders\" WHERE \"made\" >= ? AND \"made\" < ? AND \"total\" > ?")) {
        statement.setTimestamp(1, Timestamp.valueOf("2026-02-01 00:00:00"));
        statement.setTimestamp(2, Timestamp.valueOf("2026-03-02 00:00:00"));
        statement.setBigDecimal(3, new java.math.BigDecimal("1"));
        ResultSet rows = statement.executeQuery();
        rows.next();
        return rows.getInt(1);
      }
    });
    step("join", "Ann int8 text", c -> {
      try (Statement statement = c.createStatement(ResultSet.TYPE_FORWARD_ONLY, ResultSet.CONCUR_READ_ONLY)) {
        statement.setFetchSize(500);
        ResultSet rows = statement.executeQuery("SELECT o.\"id\", p.\"name\" FROM \"mb_orders\" o"
            + " LEFT JOIN \"mb_people\" AS p ON o.\"person\" = p.\"id\" LIMIT 2000");
        ResultSetMetaData meta = rows.getMetaData();
        rows.next();
        return rows.getString(2) + " " + meta.getColumnTypeName(1) + " " + meta.getColumnTypeName(2);
      }
    });
    step("read only transaction", "25006", c -> {
      c.setAutoCommit(false);
      c.setReadOnly(true);
      try {
        run("DELETE FROM mb_orders");
        return "deleted";
      } catch (java.sql.SQLException error) {
        return error.getSQLState();
      } finally {
        c.rollback();
        c.setReadOnly(false);
        c.setAutoCommit(true);
      }
    });
  }
}
