import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/** Runs the same statements on several nodes, one after the other, and prints what each is answered. */
public final class Forwarded {
  private static final String NULL = "(null)";

  /** Arguments: a file with a statement a line and the URL of a node; another file and URL; and so on. */
  public static void main(String[] arguments) throws Exception {
    for (int at = 0; at < arguments.length; at += 2) {
      System.out.print(walk(arguments[at + 1], Files.readAllLines(Path.of(arguments[at]))));
    }
  }

  /** What a node answers to each of the statements. */
  private static String walk(String url, List<String> lines) throws SQLException {
    StringBuilder found = new StringBuilder();
    try (Connection node = DriverManager.getConnection(url)) {
      for (String line : lines) {
        String[] parts = line.split("\t", -1);
        String told = parts[0].equals("broken") ? broken(node, parts[1]) : answer(node, parts, 0);
        if (parts[0].equals("pure")) {
          // Prepared on the server, with binary values; and in parts of three, in a transaction.
          for (int way = 1; way < 3; way++) {
            String again = answer(node, parts, way);
            if (!again.equals(told)) {
              throw new IllegalStateException(way + ": " + line + ": " + told + " / " + again);
            }
          }
        }
        found.append(told).append('\u001d');
      }
    }
    return found.append('\u001c').toString();
  }

  private static String answer(Connection on, String[] parts, int way) throws SQLException {
    List<String> found = new ArrayList<>();
    on.setAutoCommit(way != 2);
    try (PreparedStatement statement = on.prepareStatement(parts[1])) {
      statement.setFetchSize(way == 2 ? 3 : 0);
      for (int place = 2; place < parts.length; place++) {
        String value = parts[place].substring(1);
        if (parts[place].charAt(0) == 'i') {
          statement.setInt(place - 1, Integer.parseInt(value));
        } else {
          statement.setString(place - 1, value);
        }
      }
      // The driver prepares at the fifth time.
      for (int time = 0; time < (way == 1 ? 6 : 1); time++) {
        found.clear();
        if (!statement.execute()) {
          return "done";
        }
        found.add("rows");
        try (ResultSet rows = statement.getResultSet()) {
          ResultSetMetaData about = rows.getMetaData();
          List<String> values = new ArrayList<>();
          for (int column = 1; column <= about.getColumnCount(); column++) {
            values.add(about.getColumnName(column));
          }
          found.add(String.join("\u001f", values));
          while (rows.next()) {
            values.clear();
            for (int column = 1; column <= about.getColumnCount(); column++) {
              String value = rows.getString(column);
              values.add(value == null ? NULL : value);
            }
            found.add(String.join("\u001f", values));
          }
        }
      }
    } catch (PSQLException error) {
      ServerErrorMessage told = error.getServerErrorMessage();
      found.clear();
      found.add("error");
      found.add(
          String.join("\u001f", error.getSQLState(), text(told == null ? error.getMessage() : told.getMessage()),
              text(told == null ? null : told.getDetail()), text(told == null ? null : told.getHint())));
    } finally {
      if (!on.getAutoCommit()) {
        on.rollback();
        on.setAutoCommit(true);
      }
    }
    return String.join("\u001e", found);
  }

  /** A read in parts of four, given up in the second. */
  private static String broken(Connection on, String text) throws SQLException {
    on.setAutoCommit(false);
    try (Statement statement = on.createStatement()) {
      statement.setFetchSize(4);
      try (ResultSet rows = statement.executeQuery(text)) {
        for (int row = 0; row < 6; row++) {
          rows.next();
        }
      }
    }
    on.commit();
    on.setAutoCommit(true);
    return "done";
  }

  private static String text(String value) {
    return value == null ? "" : value;
  }
}
