"""dbt: a small project with a seed, each kind of model, a snapshot, tests and docs, which runs twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

LIMIT_S = 180

SEED = """id,name,price,sold
1,tea,2.50,2026-01-02
2,rusk,1.00,2026-01-03
3,jam,3.25,2026-02-01
"""
CHANGED = SEED.replace("2.50", "2.75") + "4,milk,1.10,2026-02-03\n"

PROJECT = """
name: peers
version: '1.0'
profile: peers
flags: {send_anonymous_usage_stats: false}
"""
SCHEMA = """
models:
- name: staged
  description: the items
  columns:
  - name: id
    description: a number
    data_tests: [unique, not_null]
  - name: name
    data_tests:
    - accepted_values: {values: [tea, rusk, jam, milk]}
- name: merged
  columns:
  - name: id
    data_tests:
    - relationships: {to: ref('items'), field: id}
- name: contract
  columns:
  - {name: id, data_type: integer, constraints: [{type: not_null}]}
  - {name: name, data_type: text}
"""
PROFILE = """
peers:
  target: dev
  outputs:
    dev:
      type: postgres
      host: %(PGHOST)s
      port: %(PGPORT)s
      user: %(PGUSER)s
      password: unused
      dbname: %(PGDATABASE)s
      schema: peers
      threads: 2
"""
SNAPSHOT = """
{%% snapshot prices %%}
{{ config(target_schema=target.schema, unique_key='id', strategy='check', check_cols=['price']) }}
select id, price from {{ ref('items') }}
{%% endsnapshot %%}
""".replace("%%", "%")
MONTHLY = """
select date_trunc('month', sold) as month, sum(price) as total, count(*) as n
from {{ ref('staged') }} group by 1
"""
APPENDED = """
select id, price from {{ ref('staged') }}
{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}
"""
PRICES = "select id, price from {{ ref('staged') }}"

# Model: how it is stored, and its query.
MODELS = {
    "staged": ("materialized='view'", "select id, name, price, sold from {{ ref('items') }}"),
    "monthly": ("materialized='table'", MONTHLY),
    "appended": ("materialized='incremental'", APPENDED),
    "replaced": (
        "materialized='incremental', unique_key='id', incremental_strategy='delete+insert'",
        PRICES,
    ),
    "merged": ("materialized='incremental', unique_key='id', incremental_strategy='merge'", PRICES),
    "short": ("materialized='ephemeral'", "select id from {{ ref('staged') }} where price < 3"),
    "of_short": ("materialized='table', indexes=[{'columns': ['id']}]", "select id from {{ ref('short') }}"),
    "contract": (
        "materialized='table', contract={'enforced': true}",
        "select id, name from {{ ref('staged') }}",
    ),
}
FILES = {
    "dbt_project.yml": PROJECT,
    "profiles.yml": PROFILE % os.environ,
    "seeds/items.csv": SEED,
    "models/schema.yml": SCHEMA,
    "snapshots/prices.sql": SNAPSHOT,
    "tests/positive.sql": "select * from {{ ref('monthly') }} where total < 0",
    **{f"models/{name}.sql": f"{{{{ config({how}) }}}}\n{query}" for name, (how, query) in MODELS.items()},
}


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
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    with results.open("w") as out:
        for words in (["debug"], ["seed"], ["run"], ["snapshot"], ["test"], ["docs", "generate"]):
            dbt(home, out, *words)
        (home / "seeds" / "items.csv").write_text(CHANGED)
        for words in (["build"], ["run", "--full-refresh"]):
            dbt(home, out, *words)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
