"""A pipeline's file: what is taken, and that what is wrong is named. No Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ducktail.__main__ import main
from ducktail.spark_connector.errors import OptionError
from ducktail.spark_connector.pipelines.config import read_config, take_sink_options

GOOD = """
name = "orders"
checkpoint = "/tmp/c"
[gateway]
port = 5481
[source]
stream = "orders_stream"
maxEventsPerTrigger = 10
[target]
kind = "table"
table = "copy"
host = "elsewhere"
[spark]
"spark.sql.shuffle.partitions" = 4
"spark.ui.enabled" = false
"""


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(GOOD)
    config = read_config(path, "mirror")
    assert (config.name, config.checkpoint, config.trigger) == ("orders", "/tmp/c", "0 seconds")
    assert config.source == {"port": "5481", "stream": "orders_stream", "maxEventsPerTrigger": "10"}
    assert config.spark == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
    assert config.target.choice("kind", ("table",)) == "table"
    options = config.write_options(take_sink_options(config.target))
    assert (options["host"], options["port"], str(options["table"])) == ("elsewhere", 5481, "copy")
    config.target.end()
    config.own.end()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name =", "nmae ="), "name is missing"),
        (('checkpoint = "/tmp/c"', "checkpoint = 7"), "checkpoint must be a text"),
        (("[spark]", "[sprak]"), "unknown key sprak, did you mean spark?"),
        (("port = 5481", "prot = 5481"), "unknown option prot, did you mean port?"),
        (("port = 5481", "port = 0"), "option port"),
        (("port = 5481", "port ="), "is no TOML"),
        (("[gateway]", "gateway = 1\n[x]"), "gateway must be a table"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(OptionError) as caught:
        read_config(path, "mirror")
    assert said in str(caught.value) or said in str(caught.value).replace("option ", "option ")


def test_the_command_says_it_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "mirror", "--config", str(tmp_path / "none.toml")]) == 1
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "mirrors", "--config", "x"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ('table = "good"', "target.kind is missing"),
        ('kind = "topic"\ntable = "good"', "target.topic is missing"),
        ('kind = "table"\ntable = "good"\ntopic = "x"', "unknown key target.topic"),
        ('kind = "table"\ntable = "good"\nkey = "id"', "unknown key target.key"),
        ('kind = "topic"\ntopic = "bad"', 'cannot both go to topic "bad"'),
    ],
)
def test_where_good_and_bad_rows_go(tmp_path: Path, target: str, said: str) -> None:
    kinds = pytest.importorskip("ducktail.spark_connector.pipelines.kinds", reason="pyspark is not installed")

    path = tmp_path / "p.toml"
    rules = '[dead_letter]\ntopic = "bad"\n[dead_letter.rules]\nprice = "price > 0"\n'
    path.write_text(f'name = "good"\ncheckpoint = "/tmp/c"\n{rules}[target]\n{target}\n')
    # The target is judged before Spark is asked for anything, so there need be none.
    with pytest.raises(OptionError) as caught:
        kinds.build_dead_letter(None, read_config(path, "dead_letter"))
    assert said in str(caught.value)
