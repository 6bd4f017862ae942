"""DuckDB's errors in PostgreSQL's wording: a table of (exception, pattern) -> class.

`translated` accepts any exception: DuckDB's own; those raised through Arrow, which are OSErrors with DuckDB's
text; limits of Python; internal errors.

Every cursor of the engine runs with `errors_as_json`, so an error has its kind, its message and the byte
offset of the token. The message is converted to PostgreSQL's style (first line, lower case, no full stop);
the following lines become the HINT. Source: docs/errors.md.
"""

from __future__ import annotations

import json
import re

import duckdb

from .. import errors as e
from . import constraint_names

# The text of a failed COMMIT or ROLLBACK includes the memory error that ended it.
_NO_MEMORY = r"[Oo]ut of [Mm]emory|[Ff]ailed to (allocate|offload|pin)|[Cc]ould not allocate"

# Exception class name of DuckDB -> ((pattern in the message, class), ..., (last resort)).
RULES: dict[str, tuple[tuple[str, type[e.DucktailError]], ...]] = {
    "ParserException": ((r"", e.SyntaxError_),),
    "SyntaxException": ((r"^Like pattern must not end", e.DataError), (r"", e.SyntaxError_)),
    "BinderException": (
        (r"[Aa]mbiguous reference", e.AmbiguousColumn),
        (r"Duplicate (alias|column)", e.DuplicateColumn),
        (r"Ambiguous reference to table|duplicate alias", e.DuplicateObject),
        (
            r"must appear in the GROUP BY|cannot be nested|aggregates? .*not allowed"
            r"|cannot contain aggregates|Window functions are not",
            e.GroupingError,
        ),
        (r"Referenced table .* not found", e.UndefinedTable),
        (
            r"Referenced (update )?column .* not found|does not have a column|was not found because the FROM",
            e.UndefinedColumn,
        ),
        (r"candidate function|No function matches", e.UndefinedFunction),
        (r"(Cannot|Can only) (insert|update|delete|modify)|base table", e.WrongObjectType),
        (r"Cannot (compare|mix|cast)|can't be cast|Unimplemented type for cast", e.DatatypeMismatch),
        (r"[Cc]ould not (determine|resolve).*type|parameter types", e.IndeterminateDatatype),
        (r"not (yet )?(supported|implemented)|unsupported", e.NotSupported),
        (r"[Cc]annot change the type of a column", e.NotSupported),
        (r"", e.SyntaxError_),
    ),
    "CatalogException": (
        (r"Column with name .* already exists", e.DuplicateColumn),
        (r"(Table|View|Sequence|Index) with name .* already exists", e.DuplicateTable),
        (r"Schema with name .* already exists", e.DuplicateSchema),
        (r"already exists|already has the constraint", e.DuplicateObject),
        (r"can have only one primary key", e.InvalidTableDefinition),
        (r"because schema .* does not exist|Schema with name .* does not exist", e.InvalidSchemaName),
        (r"(Table|View) with name .* does not exist", e.UndefinedTable),
        (r"Function with name .* does not exist", e.UndefinedFunction),
        (r"[Cc]olumn .* does not exist|does not have a column", e.UndefinedColumn),
        (r"is of type|is not an?", e.WrongObjectType),
        (r"main key table of the table", e.DependentObjects),
        (r"[Cc]annot drop (this column|column .* because)", e.DependentObjects),
        (r"configuration parameter|does not exist", e.UndefinedObject),
        (r"", e.UndefinedObject),
    ),
    "DependencyException": ((r"", e.DependentObjects),),
    "ConstraintException": (
        (r"^CHECK constraint failed", e.CheckViolation),
        (r"[Dd]uplicate key", e.UniqueViolation),
        (r"NOT NULL", e.NotNullViolation),
        (r"CHECK constraint", e.CheckViolation),
        (r"foreign key", e.ForeignKeyViolation),
        (r"", e.IntegrityViolation),
    ),
    "ConversionException": (
        (r"out of range", e.NumericOutOfRange),
        (r"Unimplemented type for cast", e.CannotCoerce),
        (r"", e.InvalidTextRepresentation),
    ),
    "OutOfRangeException": ((r"", e.NumericOutOfRange),),
    "TypeMismatchException": ((r"", e.DatatypeMismatch),),
    "DataError": ((r"", e.DataError),),
    "InvalidInputException": (
        # Of the Python functions that carry out PostgreSQL's, and error() in its macros.
        (r"not supported(?: here| by to_number)?(?:$|:)|cannot be binned", e.NotSupported),
        (r"^json can have only|^to_char cannot", e.NotSupported),
        (r"^invalid input syntax for type ", e.InvalidTextRepresentation),
        (r'^(?:invalid value "|hour "|unrecognized encoding|number of elements)', e.InvalidParameterValue),
        (r"^(?:month|hour|minute|second) must be", e.InvalidParameterValue),
        (r"^invalid hexadecimal|^Invalid input for hex", e.InvalidParameterValue),
        (r"^day (?:of year )?is out of range|^(?:day|year) \d+ (?:must|is)", e.InvalidParameterValue),
        (r"Values were not provided|Parameter argument|expected \d+ parameters", e.UndefinedParameter),
        (r"configuration has been locked|not enabled", e.InsufficientPrivilege),
        (r"division by zero", e.DivisionByZero),
        (r"already been consumed", e.WrongState),  # a registered reader, read a second time
        (r"cannot affect the same target row more than once", e.CardinalityViolation),
        # Messages of error() about names, in PostgreSQL's wording.
        (r'^relation ".*" does not exist', e.UndefinedTable),
        (r'^function ".*" does not exist', e.UndefinedFunction),
        (r'^schema ".*" does not exist', e.InvalidSchemaName),
        (r'^(type|role|stream) ".*" does not exist|^unrecognized configuration parameter', e.UndefinedObject),
        (r"^set_config cannot|^Can't convert VARIANT", e.NotSupported),
        (r'^database ".*" does not exist', e.UndefinedDatabase),
        (r'^column ".*" does not exist', e.UndefinedColumn),
        (r"^unrecognized privilege type|^partition_of: ", e.InvalidParameterValue),
        (r"", e.DataError),
    ),
    "InvalidTypeException": ((r"", e.DatatypeMismatch),),
    "SerializationException": ((r"", e.DataError),),
    "PermissionException": ((r"", e.InsufficientPrivilege),),
    "NotImplementedException": ((r"", e.NotSupported),),
    "NotSupportedError": ((r"", e.NotSupported),),
    "SequenceException": ((r"", e.WrongState),),
    "InterruptException": ((r"", e.QueryCanceled),),
    "OutOfMemoryException": ((r"", e.OutOfMemory),),
    "IOException": ((r"", e.IoError),),
    "TransactionException": (
        (r"already.*transaction|within a transaction", e.ActiveTransaction),
        (r"no transaction is active", e.NoActiveTransaction),
        (r"launched in read-only mode", e.ReadOnlyTransaction),
        (r"is aborted|has been invalidated", e.InFailedTransaction),
        (_NO_MEMORY, e.OutOfMemory),
        (r"Could not (write|sync|fsync|read)|No space|I/O error", e.IoError),
        (r"[Cc]onflict|Failed to commit|write-write", e.SerializationFailure),
        (r"", e.SerializationFailure),
    ),
    "FatalException": ((r"", e.IoError),),
    "ConnectionException": ((r"", e.IoError),),
    "HTTPException": ((r"", e.InsufficientPrivilege),),
    "ResourceInUseException": ((r"", e.ObjectInUse),),
    "Error": ((r"install the required extension", e.NotSupported),),
    "InternalException": ((r"", e.InternalError),),
    # Kinds of errors without a Python exception of their own: they are raised as `Error`, or through Arrow.
    "DivideByZero": ((r"", e.DivisionByZero),),
    "Decimal": ((r"", e.NumericOutOfRange),),
    "ObjectSize": ((r"", e.ProgramLimitExceeded),),
    "Index": ((r"", e.IntegrityViolation),),
    "Expression": ((r"", e.DataError),),
    "ParameterNotResolved": ((r"", e.IndeterminateDatatype),),
    "ParameterNotAllowed": ((r"", e.UndefinedParameter),),
    "Settings": ((r"", e.InvalidParameterValue),),
    "InvalidConfiguration": ((r"", e.InvalidParameterValue),),
    "Network": ((r"", e.InsufficientPrivilege),),
    "MissingExtension": ((r"", e.InsufficientPrivilege),),
    "ExtensionAutoloading": (
        (r"install the required extension", e.NotSupported),
        (r"", e.InsufficientPrivilege),
    ),
}
# DuckDB's names of kinds with other names in Python.
_ALIASES = {
    "MISMATCHTYPE": "TypeMismatchException",
    "UNKNOWNTYPE": "InvalidTypeException",
    "TRANSACTIONCONTEXT": "TransactionException",
}

# The message of int() for a text of more than 4,300 digits.
_PYTHONS_DIGITS = "Exceeds the limit ("
_PREFIX = re.compile(r"([A-Za-z ]{1,40}) Error: ")
# DuckDB would install an extension, which it cannot here.
_EXTENSION = re.compile(r"install the required extension '(\w+)")
DETAIL_CHARS_MAX = 2000
# A longer message is reduced to its beginning and end.
MESSAGE_CHARS_MAX = 8000
CATALOG_CONFLICT = "catalog write-write conflict"
FILES_HINT = "Files are in reach under the directories of `ducktail serve --allow-dir DIR`."


def recognized(error: BaseException, text: str | None = None) -> e.DucktailError | None:
    """An error of DuckDB, of the system or of a Python limit as one of our classes; None for other errors.

    Args:
        text: as in `translated`.
    """
    if isinstance(error, e.DucktailError):
        return error
    if isinstance(error, MemoryError):
        return e.OutOfMemory("out of memory")
    if isinstance(error, RecursionError):
        return e.ProgramLimitExceeded("the statement is nested too deeply")
    if isinstance(error, ValueError) and str(error).startswith(_PYTHONS_DIGITS):
        return e.ProgramLimitExceeded("a number has too many digits")
    if isinstance(error, OSError) and error.errno is not None:
        return e.IoError(error.strerror or "the system has refused it")
    if isinstance(error, duckdb.Error) or (isinstance(error, OSError) and _PREFIX.match(str(error))):
        return _of_duckdb(error, text)
    return None


# What DuckDB says before the message of a Python function.
_OF_PYTHON = re.compile(r"^Python exception occurred while executing the UDF: \w+: ")


def translated(error: BaseException, text: str | None = None) -> e.DucktailError:
    """Any error as one of our classes.

    Args:
        error: the raised exception; RULES has the classes of DuckDB's errors.
        text: the user's own text, if DuckDB has run exactly that: the error then has its position; else None.
    """
    found = recognized(error, text)
    if found is None:
        return e.InternalError(_bounded(f"internal error: {type(error).__name__}: {error}"))
    return found


def _of_duckdb(error: BaseException, text: str | None) -> e.DucktailError:
    message, position, hint, kind = _parts(error)
    message = _bounded(_OF_PYTHON.sub("", message))
    found = next(
        (cls for pattern, cls in RULES.get(_rule_name(error, kind), ()) if re.search(pattern, message)),
        e.InternalError,
    )
    if found is e.InsufficientPrivilege and "file system operations" in message:
        hint = hint or FILES_HINT
    if extension := _EXTENSION.search(message):
        message = f'a type or function of DuckDB\'s extension "{extension[1]}" is not supported'
        hint = "The server loads no extensions."
    place = None
    if text is not None and position is not None:
        place = len(text.encode()[:position].decode(errors="ignore")) + 1
    if CATALOG_CONFLICT in message.lower():
        # DuckDB's text continues with its key of the changed object, which may be a stream that the user must
        # not see.
        message = "could not serialize access due to a concurrent change of tables, views or streams"
        hint = "Roll back and try again."
    if found is e.CheckViolation:
        message = constraint_names.worded(message)
    return found(_worded(message), hint=hint, position=place)


def depended_on(doing: str, table: str, error: BaseException, hint: str | None = None) -> e.DependentObjects:
    """The error for a table that DuckDB refuses to alter or drop.

    Args:
        doing: the verb.
        error: DuckDB's error, which names the dependent object.
    """
    return e.DependentObjects(
        f'cannot {doing} table "{table}" because something depends on it',
        detail=translated(error).message,
        hint=hint,
    )


_BY_KIND = {name.removesuffix("Exception").upper(): name for name in RULES} | _ALIASES


def _rule_name(error: BaseException, kind: str | None) -> str:
    name = type(error).__name__
    if kind == "INTERRUPT" or name == "InterruptException":
        return "InterruptException"
    if kind is None or (name in RULES and name != "Error"):
        return name
    return _BY_KIND.get(kind.replace(" ", ""), name)


def _parts(error: BaseException) -> tuple[str, int | None, str | None, str | None]:
    """Message, byte offset, hint and kind of a DuckDB error, JSON or plain."""
    raw = str(error)
    prefix = _PREFIX.match(raw)
    begins, kind = (0, None) if prefix is None else (prefix.end(), prefix[1].upper())
    if raw.startswith("{", begins) and (facts := _facts(raw[begins:])):
        position = str(facts.get("position", ""))
        first, _, rest = str(facts["exception_message"]).partition("\n")
        kind = kind or str(facts.get("exception_type", "")).upper()
        return first.strip(), int(position) if position.isdecimal() else None, _sentence(rest), kind
    first, _, rest = raw[begins:].partition("\n")
    return first.strip(), None, _sentence(rest.split("LINE 1:")[0]), kind


def _facts(text: str) -> dict[str, object] | None:
    """The members of an error in JSON form; None for plain text with a similar beginning."""
    try:
        facts: dict[str, object] = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return facts if "exception_message" in facts else None


def _bounded(message: str) -> str:
    if len(message) <= MESSAGE_CHARS_MAX:
        return message
    return f"{message[: MESSAGE_CHARS_MAX - 2000]} ... {message[-2000:]}"


def _sentence(text: str) -> str | None:
    text = " ".join(text.split())[:DETAIL_CHARS_MAX]
    if not text:
        return None
    return text if text.endswith((".", "?", "!")) else text + "."


# DuckDB's messages of what clients recognize by PostgreSQL's.
_POSTGRES = (
    (re.compile(r'^Table with name "?(.+?)"? does not exist'), r'relation "\1" does not exist'),
    (re.compile(r'^View with name "?(.+?)"? does not exist'), r'view "\1" does not exist'),
    (re.compile(r'^Referenced column "(.+?)" (?:was )?not found .*'), r'column "\1" does not exist'),
)


def _worded(message: str) -> str:
    """First letter small unless it begins a name or an acronym; no full stop."""
    for pattern, wording in _POSTGRES:
        message = pattern.sub(wording, message)
    message = message.rstrip(". !")
    if len(message) > 1 and message[0].isupper() and not message[1].isupper():
        message = message[0].lower() + message[1:]
    return message
