import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;

/** Writes rows with one JDBC batch, in one transaction each time: prints the seconds of each. */
public final class Batch {
    public static void main(String[] args) throws Exception {
        int rows = Integer.parseInt(args[1]), turns = Integer.parseInt(args[2]);
        try (Connection connection = DriverManager.getConnection(args[0])) {
            connection.setAutoCommit(false);
            for (int turn = 0; turn < turns; turn++) {
                long start = System.nanoTime();
                try (PreparedStatement insert = connection.prepareStatement(
                        "INSERT INTO batched (id, customer, item, price) VALUES (?, ?, ?, ?)")) {
                    for (int row = 0; row < rows; row++) {
                        insert.setLong(1, Long.parseLong(args[3]) + (long) turn * rows + row);
                        insert.setInt(2, row % 10007);
                        insert.setString(3, "item " + row % 997);
                        insert.setBigDecimal(4, java.math.BigDecimal.valueOf(row % 100000, 2));
                        insert.addBatch();
                    }
                    if (insert.executeBatch().length != rows) {
                        throw new IllegalStateException("not all rows");
                    }
                }
                connection.commit();
                System.out.println((System.nanoTime() - start) / 1e9);
            }
        }
    }
}
