"""What a migration may do while processes of the version before go on working on the same database.

They insert rows without the new columns, read and write all that they know of, and know nothing of what came since.
"""

from collections.abc import Iterator
from typing import Any

from django.db.migrations import operations as ops
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration
from django.db.migrations.state import ProjectState
from django.db.models import NOT_PROVIDED, Field

# The last migrations of the last release, from which the next one must be reached under its processes.
RELEASED = {"portal": "0002_names_of_fields", "gpus": "0006_hosts", "jobs": "0019_network_of_jobs"}

_HARMLESS = (
    ops.CreateModel, ops.AddIndex, ops.RemoveIndex, ops.RenameIndex, ops.RemoveConstraint, ops.AlterModelOptions,
    ops.AlterModelManagers,
)  # fmt: skip


def harmful() -> list[str]:
    """Of the migrations since the last release: each operation that the processes of that release do not survive.

    One that they do survive for a reason that only a person can know says it in `Migration.old_code_survives`.
    """
    loader = MigrationLoader(None)
    released = list(RELEASED.items())
    state = loader.project_state(released)
    before = {key for node in released for key in loader.graph.forwards_plan(node)}
    found: list[str] = []
    for leaf in loader.graph.leaf_nodes():
        for key in loader.graph.forwards_plan(leaf):
            if key not in before:
                before.add(key)
                migration = loader.disk_migrations[key]
                found += _of_migration(migration, state) if key[0] in RELEASED else ()
                state = migration.mutate_state(state)
    return found


def _of_migration(migration: Migration, state: ProjectState) -> Iterator[str]:
    if getattr(migration, "old_code_survives", ""):
        return
    state = state.clone()
    for operation in migration.operations:
        for part in _in_database(operation):
            if why := refusal(part, state, migration.app_label):
                yield f"{migration}: {part.describe()}: {why}"
        operation.state_forwards(migration.app_label, state)


def _in_database(operation: Any) -> list[Any]:
    """What becomes of the database: a column may be forgotten by the code a release before it goes."""
    return list(operation.database_operations) if isinstance(operation, ops.SeparateDatabaseAndState) else [operation]


def refusal(operation: Any, state: ProjectState, app: str) -> str:
    """Why old processes would not survive this operation; empty when they would."""
    if isinstance(operation, _HARMLESS):
        return ""
    if isinstance(operation, ops.AddField):
        return "" if _may_be_left_out(operation.field) else "old code inserts rows without it: null or db_default"
    if isinstance(operation, ops.AlterField):
        before = state.models[app, operation.model_name_lower].fields[operation.name]
        return "" if _is_wider(before, operation.field) else "old code may write what the new column refuses"
    if isinstance(operation, ops.RunPython | ops.RunSQL):
        return "say in old_code_survives why old code is not disturbed"
    return "old code still uses it, or may break it: in the release after the one that ceased to"


def _may_be_left_out(field: Any) -> bool:
    return bool(field.many_to_many or field.null or field.db_default is not NOT_PROVIDED)


def _is_wider(before: "Field[Any, Any]", after: "Field[Any, Any]") -> bool:
    """Whether all that could be written before can be now."""
    old, new = _stored(before), _stored(after)
    if "db_default" in old and "db_default" not in new and not after.null:
        return False
    if old.get("null") and not new.get("null"):
        return False
    if (before.max_length or 0) > (after.max_length or before.max_length or 0):
        return False
    loose = ("null", "db_default", "max_length")
    return {k: v for k, v in old.items() if k not in loose} == {k: v for k, v in new.items() if k not in loose}


def _stored(field: "Field[Any, Any]") -> dict[str, Any]:
    """What of the field is the database's business."""
    _name, path, _arguments, keywords = field.deconstruct()
    return {"path": path, **{k: v for k, v in keywords.items() if k not in field.non_db_attrs}}
