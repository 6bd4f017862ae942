"""dbt: a small project of our own with a seed, each kind of model, a snapshot, tests and docs; then a second run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

LIMIT_S = 180

FILES = {
    "dbt_project.yml": "name: peers\nversion: '1.0'\nprofile: peers\nflags: {send_anonymous_usage_stats: false}\n",
    "seeds/items.csv": "id,name,price,sold\n1,tea,2.50,2026-01-02\n2,rusk,1.00,2026-01-03\n3,jam,3.25,2026-02-01\n",
    "models/staged.sql": "{{ config(materialized='view') }}\nselect id, name, price, sold from {{ ref('items') }}\n",
    "models/monthly.sql": (
        "{{ config(materialized='table') }}\n"
        "select date_trunc('month', sold) as month, sum(price) as total, count(*) as n from {{ ref('staged') }} group by 1\n"
    ),
    "models/appended.sql": (
        "{{ config(materialized='incremental') }}\nselect id, price from {{ ref('staged') }}\n"
        "{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}\n"
    ),
    "models/replaced.sql": (
        "{{ config(materialized='incremental', unique_key='id', incremental_strategy='delete+insert') }}\n"
        "select id, price from {{ ref('staged') }}\n"
    ),
    "models/merged.sql": (
        "{{ config(materialized='incremental', unique_key='id', incremental_strategy='merge') }}\n"
        "select id, price from {{ ref('staged') }}\n"
    ),
    "models/short.sql": "{{ config(materialized='ephemeral') }}\nselect id from {{ ref('staged') }} where price < 3\n",
    "models/of_short.sql": "{{ config(materialized='table', indexes=[{'columns': ['id']}]) }}\nselect id from {{ ref('short') }}\n",
    "models/contract.sql": (
        "{{ config(materialized='table', contract={'enforced': true}) }}\nselect id, name from {{ ref('staged') }}\n"
    ),
    "models/schema.yml": (
        "models:\n- name: staged\n  description: the items\n  columns:\n  - name: id\n    description: a number\n"
        "    data_tests: [unique, not_null]\n  - name: name\n    data_tests:\n"
        "    - accepted_values: {values: [tea, rusk, jam, milk]}\n"
        "- name: merged\n  columns:\n  - name: id\n    data_tests:\n"
        "    - relationships: {to: ref('items'), field: id}\n"
        "- name: contract\n  columns:\n  - {name: id, data_type: integer, constraints: [{type: not_null}]}\n"
        "  - {name: name, data_type: text}\n"
    ),
    "snapshots/prices.sql": (
        "{% snapshot prices %}\n{{ config(target_schema=target.schema, unique_key='id', strategy='check', check_cols=['price']) }}\n"
        "select id, price from {{ ref('items') }}\n{% endsnapshot %}\n"
    ),
    "tests/positive.sql": "select * from {{ ref('monthly') }} where total < 0\n",
}


def profile() -> str:
    """The connection as dbt's profile."""
    return (
        "peers:\n  target: dev\n  outputs:\n    dev: {{type: postgres, host: '{PGHOST}', port: {PGPORT}, user: {PGUSER},"
        " password: x, dbname: {PGDATABASE}, schema: peers, threads: 2}}\n"
    ).format_map(os.environ)


def dbt(home: Path, out, *words: str) -> None:  # type: ignore[no-untyped-def]
    """One command of dbt, an outcome for each node that it ran."""
    program = Path(sys.executable).with_name("dbt")
    run_results = home / "target" / "run_results.json"
    run_results.unlink(missing_ok=True)
    environment = {**os.environ, "DBT_PROFILES_DIR": str(home)}
    done = subprocess.run([program, *words], cwd=home, env=environment, timeout=LIMIT_S, check=False)
    command = " ".join(words)
    out.write(f"{command}\t{'passed' if done.returncode == 0 else f'exit code {done.returncode}'}\n")
    if run_results.exists():
        for result in json.loads(run_results.read_text())["results"]:
            good = result["status"] in ("success", "pass")
            told = "passed" if good else " ".join(str(result["message"]).split())
            out.write(f"{command}: {result['unique_id']}\t{told}\n")
    out.flush()


def main(results: Path) -> None:
    """Write the project and run it twice, the second time over changed rows."""
    home = results.parent / "dbt"
    shutil.rmtree(home, ignore_errors=True)
    for name, text in {**FILES, "profiles.yml": profile()}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    with results.open("w") as out:
        for words in (["debug"], ["seed"], ["run"], ["snapshot"], ["test"], ["docs", "generate"]):
            dbt(home, out, *words)
        seed = home / "seeds" / "items.csv"
        seed.write_text(seed.read_text().replace("2.50", "2.75") + "4,milk,1.10,2026-02-03\n")
        for words in (["build"], ["run", "--full-refresh"]):
            dbt(home, out, *words)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
