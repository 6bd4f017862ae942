import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import org.postgresql.PGResultSetMetaData;

/** Changes a table through updatable result sets, and prints what the driver knows of its columns. */
public final class Updatable {
  /** Arguments: the URL, the table, of id, "Qty" and note. */
  public static void main(String[] arguments) throws Exception {
    try (Connection on = DriverManager.getConnection(arguments[0]);
        Statement make = on.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
      described(on, "SELECT t.*, id AS n, id + 1 AS one FROM " + arguments[1] + " AS t");
      try (ResultSet rows = make.executeQuery("SELECT * FROM " + arguments[1] + " ORDER BY id")) {
        System.out.println("updatable\t" + (rows.getConcurrency() == ResultSet.CONCUR_UPDATABLE));
        rows.next();
        rows.updateInt("Qty", 11);
        rows.updateString("note", "it's");
        rows.updateRow();
        rows.next();
        rows.deleteRow();
        rows.moveToInsertRow();
        rows.updateInt("id", 9);
        rows.updateString("note", "new");
        rows.insertRow();
        rows.moveToCurrentRow();
        rows.first();
        rows.refreshRow();
        System.out.println("first\t" + rows.getInt(1) + " " + rows.getInt(2) + " " + rows.getString(3));
      }
    }
  }

  private static void described(Connection on, String query) throws SQLException {
    try (Statement statement = on.createStatement();
        ResultSet rows = statement.executeQuery(query)) {
      ResultSetMetaData told = rows.getMetaData();
      StringBuilder line = new StringBuilder("columns");
      for (int at = 1; at <= told.getColumnCount(); at++) {
        PGResultSetMetaData base = (PGResultSetMetaData) told;
        String table = base.getBaseSchemaName(at) + "." + told.getTableName(at);
        line.append("\t" + told.getColumnLabel(at) + " " + table + "." + base.getBaseColumnName(at));
        line.append(" " + told.isNullable(at) + " " + told.isAutoIncrement(at));
      }
      System.out.println(line);
    }
  }
}
