import java.math.BigDecimal;
import java.sql.Array;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.ParameterMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.time.LocalDate;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.StringJoiner;
import java.util.UUID;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;
import org.postgresql.util.PGobject;

/** Uses a shop through JDBC and prints what it saw, a line a thing: name, tab, value. */
public final class Jdbc {
  interface Work {
    Object on(Connection connection) throws Exception;
  }

  private final String url;
  private final String table;
  private final String group;

  private Jdbc(String url, String table, String group) {
    this.url = url;
    this.table = table;
    this.group = group;
  }

  public static void main(String[] arguments) throws Exception {
    new Jdbc(arguments[0], arguments[1], arguments[2]).run();
  }

  private void run() throws Exception {
    show("types", this::types);
    show("columns", this::columns);
    show("parameters", this::parameters);
    show("repeated", this::repeated);
    show("batch", this::batch);
    show("failed batch", this::failedBatch);
    show("generated keys", this::generatedKeys);
    show("fetch size", this::fetchSize);
    show("transaction", this::transaction);
    show("copy", this::copy);
    show("bare", this::bare);
    show("read only", this::readOnly);
    show("notifications", this::notifications);
    show("stream", this::stream);
    show("topic", this::topic);
    show("errors", this::errors);
    show("timeout", this::timeout);
    show("schema", this::schema);
    show("product", this::product);
    show("schemas", on -> rows(on.getMetaData().getSchemas(), 1));
    show("tables", on -> rows(on.getMetaData().getTables(null, "app", "%", null), 2, 3, 4, 5));
    show("streams", on -> rows(on.getMetaData().getTables(null, "main", "orders%", new String[] {"VIEW"}), 3));
    show("table columns", on -> rows(on.getMetaData().getColumns(null, "app", "orders", "%"), 4, 5, 6, 7, 9, 18, 12));
    show("stream columns", on -> rows(on.getMetaData().getColumns(null, "main", "orders_stream", "%"), 4, 6));
    show("primary keys", on -> rows(on.getMetaData().getPrimaryKeys(null, "app", "orders"), 3, 4, 5));
    show("imported keys", on -> rows(on.getMetaData().getImportedKeys(null, "app", "orders"), 3, 4, 7, 8));
    show("exported keys", on -> rows(on.getMetaData().getExportedKeys(null, "app", "customers"), 3, 4, 7, 8));
    show("indexes", on -> rows(on.getMetaData().getIndexInfo(null, "app", "orders", false, true), 4, 6, 8, 9));
    show("functions", on -> rows(on.getMetaData().getFunctions(null, "app", "%"), 2, 3));
    show("types of types", on -> count(on.getMetaData().getTypeInfo()) > 20);
    show("table types", on -> rows(on.getMetaData().getTableTypes(), 1).contains("VIEW"));
    show("catalogs", on -> rows(on.getMetaData().getCatalogs(), 1));
    show("privileges", on -> count(on.getMetaData().getTablePrivileges(null, "app", "orders")) >= 0);
    show("best row", on -> rows(on.getMetaData().getBestRowIdentifier(null, "app", "orders", 0, true), 2));
  }

  private void show(String name, Work work) {
    String value;
    try (Connection connection = DriverManager.getConnection(url)) {
      value = String.valueOf(work.on(connection));
    } catch (Exception error) {
      value = "ERROR " + error;
    }
    System.out.println(name + "\t" + value.replace("\n", " "));
  }

  private static String rows(ResultSet found, int... columns) throws SQLException {
    StringJoiner all = new StringJoiner("; ");
    while (found.next()) {
      StringJoiner row = new StringJoiner(" ");
      for (int column : columns) {
        row.add(found.getString(column));
      }
      all.add(row.toString());
    }
    return all.toString();
  }

  private static int count(ResultSet found) throws SQLException {
    int rows = 0;
    while (found.next()) {
      rows++;
    }
    return rows;
  }

  private static String one(Connection on, String query) throws SQLException {
    try (Statement statement = on.createStatement()) {
      return rows(statement.executeQuery(query), 1);
    }
  }

  /** Six times, so that the server prepares it and answers in binary from the fifth on. */
  private Object types(Connection on) throws SQLException {
    StringJoiner all = new StringJoiner("|");
    try (PreparedStatement statement =
        on.prepareStatement("SELECT * FROM app.customers JOIN app.orders o ON o.id = 4 + customers.id"
            + " WHERE customers.id = ?")) {
      for (int time = 0; time < 6; time++) {
        statement.setLong(1, 1);
        try (ResultSet row = statement.executeQuery()) {
          row.next();
          StringJoiner values = new StringJoiner(" ");
          values.add("" + row.getLong("id")).add(row.getString("name")).add(row.getString("email"));
          values.add("" + row.getObject("created", OffsetDateTime.class).toInstant());
          values.add("" + row.getBigDecimal("balance")).add(row.getString("meta"));
          values.add("" + ((Object[]) row.getArray("tags").getArray())[1]);
          values.add("" + row.getObject("uid", UUID.class)).add("" + row.getBytes("photo").length);
          values.add("" + row.getBoolean("active")).add(row.getString("st"));
          values.add("" + row.getObject("placed", LocalDate.class));
          values.add("" + row.getObject("t", LocalTime.class)).add(row.getString("iv"));
          values.add("" + row.getDouble("d")).add("" + row.getShort("s")).add("" + row.getFloat("r"));
          all.add(values.toString());
        }
      }
    }
    String[] seen = all.toString().split("\\|");
    for (String other : seen) {
      if (!other.equals(seen[0])) {
        return "differs: " + all;
      }
    }
    return seen[0];
  }

  private Object columns(Connection on) throws SQLException {
    try (PreparedStatement statement = on.prepareStatement("SELECT * FROM app.customers WHERE id = ?")) {
      ResultSetMetaData columns = statement.getMetaData();
      StringJoiner all = new StringJoiner(" ");
      for (int at = 1; at <= columns.getColumnCount(); at++) {
        all.add(columns.getColumnName(at) + ":" + columns.getColumnTypeName(at) + ":" + columns.getColumnType(at));
      }
      ParameterMetaData parameters = statement.getParameterMetaData();
      return all + " ?" + parameters.getParameterTypeName(1) + " " + columns.getPrecision(5) + "," + columns.getScale(5);
    }
  }

  private Object parameters(Connection on) throws Exception {
    try (Statement statement = on.createStatement()) {
      statement.execute("CREATE TEMP TABLE copies AS SELECT * FROM app.customers LIMIT 0");
    }
    PGobject json = new PGobject();
    json.setType("json");
    json.setValue("{\"a\": [1, null]}");
    try (PreparedStatement statement =
        on.prepareStatement("INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")) {
      for (int time = 1; time <= 6; time++) {
        Array tags = on.createArrayOf("text", new Object[] {"x", "y z", null, "\"q\""});
        statement.setLong(1, time);
        statement.setString(2, "Ann ☃'s \\");
        statement.setNull(3, Types.VARCHAR);
        statement.setObject(4, OffsetDateTime.parse("2026-01-02T03:04:05.678901Z"));
        statement.setBigDecimal(5, new java.math.BigDecimal("12345.67"));
        statement.setObject(6, json);
        statement.setArray(7, tags);
        statement.setObject(8, UUID.fromString("b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e"));
        statement.setBytes(9, new byte[] {0, (byte) 0xff, 0x5c});
        statement.setBoolean(10, true);
        if (statement.executeUpdate() != 1) {
          return "not one row";
        }
      }
    }
    return one(on, "SELECT count(*) FROM copies") + " " + one(on, "SELECT DISTINCT concat_ws(' ', name, email,"
        + " created, balance, meta, tags, uid, hex(photo), active) FROM copies");
  }

  private Object repeated(Connection on) throws SQLException {
    long sum = 0;
    try (PreparedStatement statement =
        on.prepareStatement("SELECT amount FROM app.orders WHERE id = ? AND placed > ?")) {
      for (int at = 1; at <= 40; at++) {
        statement.setInt(1, at);
        statement.setObject(2, LocalDate.of(2025, 12, 31));
        try (ResultSet row = statement.executeQuery()) {
          row.next();
          sum += row.getBigDecimal(1).movePointRight(2).longValueExact();
        }
      }
    }
    return sum;
  }

  private Object batch(Connection on) throws SQLException {
    int total = 0;
    on.setAutoCommit(false);
    try (PreparedStatement statement = on.prepareStatement("INSERT INTO " + table + " VALUES (?, ?)")) {
      for (int at = 0; at < 500; at++) {
        statement.setInt(1, at);
        statement.setString(2, at % 2 == 0 ? "v" + at : null);
        statement.addBatch();
      }
      for (int rows : statement.executeBatch()) {
        total += rows == Statement.SUCCESS_NO_INFO ? 1 : rows;
      }
    }
    on.commit();
    return total + " " + one(on, "SELECT count(*) || ' ' || count(txt) || ' ' || max(txt) FROM " + table);
  }

  private Object failedBatch(Connection on) throws SQLException {
    try (Statement statement = on.createStatement()) {
      statement.addBatch("INSERT INTO " + table + " VALUES (1000, 'a')");
      statement.addBatch("INSERT INTO " + table + " VALUES (1000, 'b')");
      statement.executeBatch();
      return "no error";
    } catch (BatchUpdateException error) {
      return error.getSQLState() + " " + one(on, "SELECT count(*) FROM " + table + " WHERE i = 1000");
    }
  }

  private Object generatedKeys(Connection on) throws SQLException {
    String insert = "INSERT INTO " + table + " VALUES (?, ?)";
    StringJoiner all = new StringJoiner(" ");
    try (PreparedStatement statement = on.prepareStatement(insert, Statement.RETURN_GENERATED_KEYS)) {
      statement.setInt(1, 2000);
      statement.setString(2, "whole row");
      statement.executeUpdate();
      all.add(rows(statement.getGeneratedKeys(), 1, 2));
    }
    try (PreparedStatement statement = on.prepareStatement(insert, new String[] {"i"})) {
      for (int at = 2001; at < 2004; at++) {
        statement.setInt(1, at);
        statement.setString(2, "batch");
        statement.addBatch();
      }
      statement.executeBatch();
      all.add(rows(statement.getGeneratedKeys(), 1));
    }
    return all;
  }

  private Object fetchSize(Connection on) throws SQLException {
    on.setAutoCommit(false);
    StringJoiner all = new StringJoiner(" ");
    for (int size : new int[] {1, 10, 1000}) {
      long sum = 0;
      try (PreparedStatement statement = on.prepareStatement("SELECT * FROM range(?) r(n)")) {
        statement.setFetchSize(size);
        statement.setLong(1, size == 1 ? 300 : 20_000);
        try (ResultSet rows = statement.executeQuery()) {
          while (rows.next()) {
            sum += rows.getLong(1);
          }
        }
      }
      all.add("" + sum);
    }
    try (Statement statement = on.createStatement()) {
      statement.setMaxRows(7);
      all.add("" + count(statement.executeQuery("SELECT * FROM app.orders")));
    }
    on.rollback();
    return all;
  }

  private Object transaction(Connection on) throws SQLException {
    on.setAutoCommit(false);
    on.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
    try (Statement statement = on.createStatement()) {
      statement.executeUpdate("DELETE FROM " + table);
      on.rollback();
      statement.executeUpdate("UPDATE " + table + " SET txt = 'u' WHERE i < 10");
      on.setSavepoint("s");
      on.commit();
    }
    on.setAutoCommit(true);
    return one(on, "SELECT count(*) || ' ' || count(*) FILTER (txt = 'u') FROM " + table)
        + " " + (on.getTransactionIsolation() == Connection.TRANSACTION_REPEATABLE_READ);
  }

  private Object copy(Connection on) throws Exception {
    CopyManager copies = on.unwrap(PGConnection.class).getCopyAPI();
    long rows = copies.copyIn("COPY " + table + " FROM STDIN", new java.io.StringReader("3000\ta\\tb\n3001\t\\N\n"));
    return rows + " " + one(on, "SELECT txt FROM " + table + " WHERE i = 3000");
  }

  private Object bare(Connection on) throws SQLException {
    StringJoiner all = new StringJoiner(" ");
    try (PreparedStatement statement = on.prepareStatement("SELECT ?, ?, ?, ? AS n")) {
      for (int time = 0; time < 6; time++) {
        statement.setInt(1, 7);
        statement.setBigDecimal(2, new BigDecimal("1.50"));
        statement.setBoolean(3, true);
        statement.setObject(4, new BigDecimal("123456789012345678901.25"));
        try (ResultSet row = statement.executeQuery()) {
          row.next();
          if (time % 5 == 0) {
            all.add(row.getInt(1) + "").add(row.getBigDecimal(2) + "").add(row.getBoolean(3) + "");
            all.add(row.getBigDecimal(4) + "").add(row.getMetaData().getColumnTypeName(2));
          }
        }
      }
    }
    return all;
  }

  private Object readOnly(Connection on) throws SQLException {
    StringJoiner all = new StringJoiner(" ");
    on.setReadOnly(true);
    on.setAutoCommit(false);
    try (Statement statement = on.createStatement()) {
      all.add(one(on, "SHOW transaction_read_only"));
      statement.executeUpdate("DELETE FROM " + table);
    } catch (SQLException error) {
      all.add(error.getSQLState());
    }
    on.rollback();
    on.setReadOnly(false);
    all.add(one(on, "SHOW transaction_read_only"));
    on.rollback();
    return all;
  }

  private Object notifications(Connection on) throws SQLException {
    PGConnection listener = on.unwrap(PGConnection.class);
    StringJoiner all = new StringJoiner(" ");
    try (Statement statement = on.createStatement();
        Connection other = DriverManager.getConnection(url);
        Statement says = other.createStatement()) {
      statement.execute("LISTEN jdbc_" + table);
      says.execute("NOTIFY jdbc_" + table + ", 'one'");
      says.execute("NOTIFY jdbc_" + table);
      for (int waited = 0; all.length() < 5 && waited < 20; waited++) {
        PGNotification[] found = listener.getNotifications(1000);
        for (PGNotification note : found == null ? new PGNotification[0] : found) {
          all.add(note.getName().replace("_" + table, "") + "=" + note.getParameter());
        }
      }
      statement.execute("UNLISTEN *");
    }
    return all;
  }

  private Object stream(Connection on) throws SQLException {
    StringJoiner all = new StringJoiner(" ");
    try (PreparedStatement read =
            on.prepareStatement("SELECT lsn, key, commit_time FROM STREAM orders_stream CONSUMER GROUP "
                + group + " LIMIT ?");
        Statement commit = on.createStatement()) {
      for (int time = 0; time < 8; time++) {
        read.setInt(1, 2);
        try (ResultSet rows = read.executeQuery()) {
          while (rows.next()) {
            all.add(rows.getString("key").replaceAll("[^0-9]", ""));
          }
        }
        commit.execute("COMMIT OFFSETS ON orders_stream CONSUMER GROUP " + group);
      }
    }
    return all;
  }

  private Object topic(Connection on) throws SQLException {
    StringJoiner all = new StringJoiner(" ");
    String topic = table + "_topic";
    try (Statement statement = on.createStatement()) {
      statement.execute("CREATE TOPIC " + topic + " WITH (partitions = 4)");
      statement.execute("CREATE CONSUMER GROUP g ON " + topic);
      try (PreparedStatement publish = on.prepareStatement("PUBLISH TO " + topic + " KEY ? ?")) {
        publish.setString(1, "ada");
        publish.setString(2, "{\"n\": 1}");
        try (ResultSet place = publish.executeQuery()) {
          place.next();
          all.add(place.getInt("partition") + "/" + place.getBoolean("local"));
        }
        on.setAutoCommit(false);
        publish.setString(2, "rolled back");
        publish.executeQuery().close();
        on.rollback();
        on.setAutoCommit(true);
      }
      try (PreparedStatement insert =
          on.prepareStatement("INSERT INTO " + topic + " (payload, key) VALUES (?, ?)")) {
        for (String payload : new String[] {"two", "it's", "\u2603"}) {
          insert.setString(1, payload);
          insert.setString(2, "ada");
          insert.addBatch();
        }
        all.add(String.valueOf(insert.executeBatch().length));
      }
      try (PreparedStatement read = on.prepareStatement(
          "SELECT key, after, after ->> '$' AS payload FROM TOPIC " + topic
              + " CONSUMER GROUP g MEMBER 'java' WAIT '10 s' LIMIT ?")) {
        read.setInt(1, 100);
        try (ResultSet rows = read.executeQuery()) {
          while (rows.next()) {
            all.add(rows.getString("key") + "=" + rows.getString("payload"));
          }
        }
      }
      statement.execute("COMMIT OFFSETS ON " + topic + " CONSUMER GROUP g MEMBER 'java'");
      String lag = "SELECT sum(lag_events)::INTEGER FROM ducktail.offsets WHERE stream_name = '" + topic + "'";
      try (ResultSet left = statement.executeQuery(lag)) {
        left.next();
        all.add(String.valueOf(left.getInt(1)));
      }
      statement.execute("DROP TOPIC " + topic + " CASCADE");
    }
    return all;
  }

  private Object errors(Connection on) throws SQLException {
    StringJoiner all = new StringJoiner(" ");
    String[] wrong = {
      "SELECT nowhere FROM app.orders", "SELECT * FROM nowhere", "SELEC 1", "SELECT 1 / 'a'::INTEGER",
      "INSERT INTO app.customers (id) VALUES (3)", "SELECT * FROM STREAM nowhere"
    };
    for (String query : wrong) {
      try (Statement statement = on.createStatement()) {
        statement.execute(query);
        all.add("none");
      } catch (SQLException error) {
        all.add(error.getSQLState());
      }
    }
    return all;
  }

  private Object timeout(Connection on) throws SQLException {
    try (Statement statement = on.createStatement()) {
      statement.setQueryTimeout(1);
      statement.executeQuery("SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8");
      return "no error";
    } catch (SQLException error) {
      return error.getSQLState() + " " + one(on, "SELECT 5");
    }
  }

  private Object schema(Connection on) throws SQLException {
    String before = on.getSchema();
    on.setSchema("app");
    return before + " " + on.getSchema() + " " + one(on, "SELECT count(*) FROM orders") + " " + on.getCatalog();
  }

  private Object product(Connection on) throws SQLException {
    DatabaseMetaData data = on.getMetaData();
    return data.getDatabaseProductName() + " " + data.getDatabaseMajorVersion() + " " + data.getUserName()
        + " " + data.getMaxColumnNameLength() + " " + data.getDefaultTransactionIsolation() + " " + on.isValid(5);
  }
}
