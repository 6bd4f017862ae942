import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;

/** Runs prepared statements again behind ALTER TABLE on another connection, and prints what each gives. */
public final class Altered {
  private static final String[] CHANGES = {
    "ALTER TABLE altered ALTER a TYPE real",
    "ALTER TABLE altered ADD COLUMN c int",
    "ALTER TABLE altered DROP COLUMN b",
    "ALTER TABLE altered RENAME COLUMN a TO aa",
  };

  /** Argument: the URL. */
  public static void main(String[] arguments) throws Exception {
    try (Connection on = DriverManager.getConnection(arguments[0]);
        Connection other = DriverManager.getConnection(arguments[0]);
        Statement change = other.createStatement()) {
      change.execute("CREATE TABLE altered (id int PRIMARY KEY, a int, b text)");
      change.execute("INSERT INTO altered VALUES (1, 2, 'x')");
      try (PreparedStatement all = on.prepareStatement("SELECT * FROM altered WHERE id = ?");
          PreparedStatement write =
              on.prepareStatement("UPDATE altered SET id = ? WHERE id = 1 RETURNING *")) {
        twice(all);
        twice(write);
        for (String text : CHANGES) {
          change.execute(text);
          System.out.println(text);
          twice(all);
          twice(write);
        }
      }
      change.execute("DROP TABLE altered");
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
