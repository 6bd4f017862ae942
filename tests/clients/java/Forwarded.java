import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;

/** Runs statements on two nodes, prepared, as text and in parts, and prints each answer that differs. */
public final class Forwarded {
  /** Arguments: the URLs of the owner and of another node, then the statements. */
  public static void main(String[] arguments) throws Exception {
    try (Connection owner = DriverManager.getConnection(arguments[0]);
        Connection entry = DriverManager.getConnection(arguments[1])) {
      for (int at = 2; at < arguments.length; at++) {
        for (int way = 0; way < 3; way++) {
          String there = answer(owner, arguments[at], way);
          String here = answer(entry, arguments[at], way);
          System.out.println(there.equals(here) ? "same" : arguments[at] + ": " + there + " / " + here);
        }
      }
      System.out.println(parts(owner) + " " + parts(entry));
    }
  }

  private static String answer(Connection on, String text, int way) throws SQLException {
    StringBuilder found = new StringBuilder();
    try (PreparedStatement statement = on.prepareStatement(text)) {
      on.setAutoCommit(way != 2);
      statement.setFetchSize(way == 2 ? 3 : 0);
      // The driver prepares at the fifth time, and asks for binary values then.
      for (int time = 0; time < (way == 1 ? 7 : 1); time++) {
        found.setLength(0);
        if (!statement.execute()) {
          return "count " + statement.getUpdateCount();
        }
        try (ResultSet rows = statement.getResultSet()) {
          ResultSetMetaData about = rows.getMetaData();
          while (rows.next()) {
            for (int column = 1; column <= about.getColumnCount(); column++) {
              boolean lasting = !about.getColumnTypeName(column).startsWith("float");
              found.append(about.getColumnName(column)).append(lasting ? rows.getString(column) : "");
            }
          }
        }
      }
    } catch (SQLException error) {
      found.append(error.getSQLState()).append(error.getMessage());
    } finally {
      if (!on.getAutoCommit()) {
        on.rollback();
        on.setAutoCommit(true);
      }
    }
    return found.toString();
  }

  /** A read in parts of four, given up in the second: the read position is at the eighth event. */
  private static String parts(Connection on) throws SQLException {
    on.setAutoCommit(false);
    try (Statement statement = on.createStatement()) {
      statement.setFetchSize(4);
      try (ResultSet rows = statement.executeQuery("SELECT lsn FROM STREAM s CONSUMER GROUP g")) {
        for (int row = 0; row < 6; row++) {
          rows.next();
        }
      }
    }
    on.commit();
    on.setAutoCommit(true);
    try (Statement statement = on.createStatement();
        ResultSet rows = statement.executeQuery("SHOW READ POSITION ON s CONSUMER GROUP g")) {
      rows.next();
      return rows.getString(1);
    }
  }
}
