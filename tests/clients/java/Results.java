import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.List;

/**
 * Runs statements and prints the names and rows of each in one line. Arguments: the URL, and a file with a line for
 * each statement: the text and its parameters between tabs, as n:NUMBER, s:TEXT, i:NUMBER,NUMBER or t:TEXT,TEXT.
 */
public final class Results {
  public static void main(String[] arguments) throws Exception {
    try (Connection on = DriverManager.getConnection(arguments[0])) {
      for (String line : Files.readAllLines(Path.of(arguments[1]))) {
        String[] parts = line.split("\t");
        try (PreparedStatement statement = on.prepareStatement(parts[0])) {
          for (int at = 1; at < parts.length; at++) {
            set(on, statement, at, parts[at].charAt(0), parts[at].substring(2));
          }
          try (ResultSet rows = statement.executeQuery()) {
            System.out.println(all(rows));
          }
        }
      }
    }
  }

  private static void set(Connection on, PreparedStatement statement, int at, char kind, String value)
      throws Exception {
    switch (kind) {
      case 'n' -> statement.setInt(at, Integer.parseInt(value));
      case 's' -> statement.setString(at, value);
      case 'i' -> statement.setArray(at, on.createArrayOf("int4", value.split(",")));
      default -> statement.setArray(at, on.createArrayOf("text", value.split(",")));
    }
  }

  private static List<List<String>> all(ResultSet rows) throws Exception {
    int width = rows.getMetaData().getColumnCount();
    List<List<String>> found = new ArrayList<>();
    List<String> names = new ArrayList<>();
    for (int at = 1; at <= width; at++) {
      names.add(rows.getMetaData().getColumnName(at));
    }
    found.add(names);
    while (rows.next()) {
      List<String> row = new ArrayList<>();
      for (int at = 1; at <= width; at++) {
        row.add(rows.getString(at));
      }
      found.add(row);
    }
    return found;
  }
}
