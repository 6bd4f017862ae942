import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * Runs prepared statements again behind ALTER TABLE on another connection, on the same one, and in a transaction of
 * it, and prints what each gives.
 */
public final class Altered {
  private static final String[] CHANGES = {
    "ALTER TABLE altered ALTER a TYPE real",
    "ALTER TABLE altered ADD COLUMN c int",
    "ALTER TABLE altered DROP COLUMN b",
    "ALTER TABLE altered RENAME COLUMN a TO aa",
  };

  /** Argument: the URL. */
  public static void main(String[] arguments) throws Exception {
    for (String origin : new String[] {"other", "same", "transaction"}) {
      System.out.println(origin);
      behind(arguments[0], origin);
    }
  }

  private static void behind(String url, String origin) throws SQLException {
    try (Connection on = DriverManager.getConnection(url);
        Connection other = DriverManager.getConnection(url);
        Statement make = other.createStatement();
        Statement change = (origin.equals("other") ? other : on).createStatement()) {
      make.execute("CREATE TABLE altered (id int PRIMARY KEY, a int, b text)");
      make.execute("INSERT INTO altered VALUES (1, 2, 'x')");
      try (PreparedStatement all = on.prepareStatement("SELECT * FROM altered WHERE id = ?");
          PreparedStatement write =
              on.prepareStatement("UPDATE altered SET id = ? WHERE id = 1 RETURNING *")) {
        twice(all);
        twice(write);
        for (String text : CHANGES) {
          on.setAutoCommit(!origin.equals("transaction"));
          change.execute(text);
          System.out.println(text);
          twice(all);
          twice(write);
          on.setAutoCommit(true);
        }
      }
      make.execute("DROP TABLE altered");
    }
  }

  /** The second time tells whether the driver has prepared it again. */
  private static void twice(PreparedStatement statement) {
    for (int time = 0; time < 2; time++) {
      try {
        statement.setInt(1, 1);
        try (ResultSet rows = statement.executeQuery()) {
          ResultSetMetaData told = rows.getMetaData();
          while (rows.next()) {
            StringBuilder line = new StringBuilder();
            for (int at = 1; at <= told.getColumnCount(); at++) {
              line.append(told.getColumnName(at)).append('=').append(rows.getString(at)).append(' ');
            }
            System.out.println(line);
          }
        }
      } catch (SQLException error) {
        System.out.println(error.getSQLState());
      }
    }
  }
}
