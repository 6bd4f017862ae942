import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/** Reads a large result in parts, with other statements between them, and prints what came. */
public final class Parts {
  private static final String ROWS = "SELECT i, 't' || i FROM range(%d) r(i)";

  /** Arguments: the URL, then fetch size, rows, and rows between two other statements, again and again. */
  public static void main(String[] arguments) throws Exception {
    try (Connection on = DriverManager.getConnection(arguments[0])) {
      on.setAutoCommit(false);
      for (int at = 1; at < arguments.length; at += 3) {
        int size = Integer.parseInt(arguments[at]);
        int rows = Integer.parseInt(arguments[at + 1]);
        System.out.println(size + "\t" + read(on, size, rows, Integer.parseInt(arguments[at + 2])));
        on.commit();
      }
    }
  }

  private static String read(Connection on, int size, int rows, int between) throws SQLException {
    long sum = 0;
    int others = 0;
    try (Statement statement = on.createStatement();
        PreparedStatement other = on.prepareStatement("SELECT ? + 1")) {
      statement.setFetchSize(size);
      try (ResultSet found = statement.executeQuery(String.format(ROWS, rows))) {
        for (int row = 0; found.next(); row++) {
          if (found.getLong(1) != row || !found.getString(2).equals("t" + row)) {
            return "row " + row + " is " + found.getLong(1) + ", " + found.getString(2);
          }
          sum += row;
          if (row % between == 0) {
            other.setInt(1, row);
            try (ResultSet one = other.executeQuery()) {
              one.next();
              others += one.getInt(1) - row;
            }
          }
        }
      }
    }
    return sum + " " + others;
  }
}
