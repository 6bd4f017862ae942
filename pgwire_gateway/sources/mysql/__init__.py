"""The client of MySQL and MariaDB as a source: the binary log by rows, and copies as of its positions."""

from .mysql_connector import SERVER_ID_MAX, MysqlConnector
from .mysql_server import parsed

__all__ = ["SERVER_ID_MAX", "MysqlConnector", "parsed"]
