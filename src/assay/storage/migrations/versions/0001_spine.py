"""The spine: every table, and triggers that make terminal states final."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import BigId, Document, Dollars, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "environment",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("manifest", Document, nullable=False),
        sa.Column("bundle", sa.String(length=64), nullable=False),
        sa.Column("codebase", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment")),
    )
    with op.batch_alter_table("environment", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_environment_name"), ["name"], unique=False)

    op.create_table(
        "idempotency_key",
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", Document, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name=op.f("pk_idempotency_key")),
    )
    op.create_table(
        "leader",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leader")),
    )
    op.create_table(
        "lease",
        sa.Column("token", BigId, autoincrement=True, nullable=False),
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_lease")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "outbox",
        sa.Column("id", BigId, autoincrement=True, nullable=False),
        sa.Column("topic", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("incarnation", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("hardware_class", sa.String(length=64), nullable=False),
        sa.Column("sandbox", sa.String(length=64), nullable=False),
        sa.Column("isolated", sa.Boolean(), nullable=False),
        sa.Column("guarantees", Document, nullable=False),
        sa.Column("info", Document, nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("last_seen_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
        sa.UniqueConstraint("name", name=op.f("uq_worker_name")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_worker_token_hash")),
    )
    op.create_table(
        "codebase",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("environment_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.id"], name=op.f("fk_codebase_environment_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_codebase")),
    )
    op.create_table(
        "search",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("environment_id", sa.String(length=64), nullable=False),
        sa.Column("profile", sa.String(length=64), nullable=False),
        sa.Column("strategy", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("epochs", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("ideator", sa.String(length=256), nullable=False),
        sa.Column("executor", sa.String(length=256), nullable=False),
        sa.Column("hardware_class", sa.String(length=64), nullable=True),
        sa.Column("config", Document, nullable=False),
        sa.Column("labels", Document, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.id"], name=op.f("fk_search_environment_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_search")),
    )
    op.create_table(
        "batch",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("environment_id", sa.String(length=64), nullable=False),
        sa.Column("profile", sa.String(length=64), nullable=False),
        sa.Column("hardware_class", sa.String(length=64), nullable=False),
        sa.Column("executor", sa.String(length=256), nullable=False),
        sa.Column("ideator", sa.String(length=256), nullable=True),
        sa.Column("options", Document, nullable=False),
        sa.Column("labels", Document, nullable=False),
        sa.Column("search_id", sa.String(length=64), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.id"], name=op.f("fk_batch_environment_id")
        ),
        sa.ForeignKeyConstraint(["search_id"], ["search.id"], name=op.f("fk_batch_search_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batch")),
    )
    with op.batch_alter_table("batch", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_batch_owner"), ["owner"], unique=False)
        batch_op.create_index(batch_op.f("ix_batch_search_id"), ["search_id"], unique=False)

    op.create_table(
        "measurement",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("codebase_id", sa.String(length=64), nullable=False),
        sa.Column("environment_id", sa.String(length=64), nullable=False),
        sa.Column("profile", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("hardware_class", sa.String(length=64), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("failure", Document, nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("needs_isolation", sa.Boolean(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("budget_seconds", sa.Double(), nullable=False),
        sa.Column("infrastructure_failures", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("queued_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["codebase_id"], ["codebase.id"], name=op.f("fk_measurement_codebase_id")
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.id"], name=op.f("fk_measurement_environment_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint(
            "codebase_id",
            "environment_id",
            "profile",
            "seed",
            "hardware_class",
            "replicate",
            "kind",
            name="uq_measurement_identity",
        ),
    )
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.create_index(
            "ix_measurement_queued",
            ["hardware_class", "priority", "queued_at"],
            unique=False,
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )

    op.create_table(
        "attempt",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("measurement_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=64), nullable=False),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("lease_expires_at", UtcDateTime(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("failure", Document, nullable=True),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("released_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurement.id"], name=op.f("fk_attempt_measurement_id")
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["worker.id"], name=op.f("fk_attempt_worker_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint(
            "measurement_id", "number", name=op.f("uq_attempt_measurement_id_number")
        ),
    )
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.create_index(
            "ix_attempt_held",
            ["worker_id"],
            unique=False,
            sqlite_where=sa.text("released_at IS NULL"),
            postgresql_where=sa.text("released_at IS NULL"),
        )
        batch_op.create_index(
            "uq_attempt_live",
            ["measurement_id"],
            unique=True,
            sqlite_where=sa.text("state IN ('assigned', 'starting', 'running', 'finalizing')"),
            postgresql_where=sa.text("state IN ('assigned', 'starting', 'running', 'finalizing')"),
        )

    op.create_table(
        "epoch",
        sa.Column("search_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("ideas", Document, nullable=False),
        sa.Column("batch_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_epoch_batch_id")),
        sa.ForeignKeyConstraint(["search_id"], ["search.id"], name=op.f("fk_epoch_search_id")),
        sa.PrimaryKeyConstraint("search_id", "number", name=op.f("pk_epoch")),
    )
    op.create_table(
        "event",
        sa.Column("id", BigId, autoincrement=True, nullable=False),
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=True),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("data", Document, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_event_batch_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.create_index("ix_event_batch", ["batch_id", "id"], unique=False)

    op.create_table(
        "idea",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("client_key", sa.String(length=200), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("thinking", sa.Text(), nullable=True),
        sa.Column("operator", sa.String(length=16), nullable=False),
        sa.Column("parents", Document, nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_idea_batch_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_idea")),
        sa.UniqueConstraint("batch_id", "client_key", name=op.f("uq_idea_batch_id_client_key")),
        sa.UniqueConstraint("batch_id", "position", name=op.f("uq_idea_batch_id_position")),
    )
    op.create_table(
        "artifacts",
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("prefix", sa.String(length=256), nullable=False),
        sa.Column("files", Document, nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_artifacts_attempt_id")
        ),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "curve_point",
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("step", sa.Double(), nullable=True),
        sa.Column("values", Document, nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_curve_point_attempt_id")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "seq", name=op.f("pk_curve_point")),
    )
    op.create_table(
        "experiment",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("idea_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("failure", Document, nullable=True),
        sa.Column("codebase_id", sa.String(length=64), nullable=True),
        sa.Column("was_started", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_experiment_batch_id")),
        sa.ForeignKeyConstraint(
            ["codebase_id"], ["codebase.id"], name=op.f("fk_experiment_codebase_id")
        ),
        sa.ForeignKeyConstraint(["idea_id"], ["idea.id"], name=op.f("fk_experiment_idea_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment")),
        sa.UniqueConstraint("idea_id", name=op.f("uq_experiment_idea_id")),
    )
    with op.batch_alter_table("experiment", schema=None) as batch_op:
        batch_op.create_index(
            "ix_experiment_batch_position", ["batch_id", "position"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_experiment_codebase_id"), ["codebase_id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_experiment_state"), ["state"], unique=False)

    op.create_table(
        "log_chunk",
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_log_chunk_attempt_id")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "stream", "byte_offset", name=op.f("pk_log_chunk")),
    )
    op.create_table(
        "result",
        sa.Column("measurement_id", sa.String(length=64), nullable=False),
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("metric", sa.Double(), nullable=False),
        sa.Column("metrics", Document, nullable=False),
        sa.Column("provenance", Document, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_result_attempt_id")),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurement.id"], name=op.f("fk_result_measurement_id")
        ),
        sa.PrimaryKeyConstraint("measurement_id", name=op.f("pk_result")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_result_attempt_id")),
    )
    op.create_table(
        "experiment_measurement",
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("measurement_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_experiment_measurement_experiment_id"),
        ),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["measurement.id"],
            name=op.f("fk_experiment_measurement_measurement_id"),
        ),
        sa.PrimaryKeyConstraint(
            "experiment_id", "measurement_id", name=op.f("pk_experiment_measurement")
        ),
    )
    with op.batch_alter_table("experiment_measurement", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_experiment_measurement_measurement_id"),
            ["measurement_id"],
            unique=False,
        )

    op.create_table(
        "implementation",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("executor", sa.String(length=256), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("codebase_id", sa.String(length=64), nullable=True),
        sa.Column("winner", sa.Integer(), nullable=True),
        sa.Column("faults", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["codebase_id"], ["codebase.id"], name=op.f("fk_implementation_codebase_id")
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiment.id"], name=op.f("fk_implementation_experiment_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_implementation")),
        sa.UniqueConstraint("experiment_id", name=op.f("uq_implementation_experiment_id")),
    )
    op.create_table(
        "sample",
        sa.Column("implementation_id", sa.String(length=64), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=True),
        sa.Column("prompt_version", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("thinking", sa.Text(), nullable=True),
        sa.Column("diff", sa.Text(), nullable=True),
        sa.Column("patch_log", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", Dollars(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("interrupted", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["implementation_id"], ["implementation.id"], name=op.f("fk_sample_implementation_id")
        ),
        sa.PrimaryKeyConstraint("implementation_id", "sample", "revision", name=op.f("pk_sample")),
    )
    _create_triggers()


def downgrade() -> None:
    _drop_triggers()
    op.drop_table("sample")
    op.drop_table("implementation")
    with op.batch_alter_table("experiment_measurement", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_experiment_measurement_measurement_id"))

    op.drop_table("experiment_measurement")
    op.drop_table("result")
    op.drop_table("log_chunk")
    with op.batch_alter_table("experiment", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_experiment_state"))
        batch_op.drop_index(batch_op.f("ix_experiment_codebase_id"))
        batch_op.drop_index("ix_experiment_batch_position")

    op.drop_table("experiment")
    op.drop_table("curve_point")
    op.drop_table("artifacts")
    op.drop_table("idea")
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.drop_index("ix_event_batch")

    op.drop_table("event")
    op.drop_table("epoch")
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_attempt_live",
            sqlite_where=sa.text("state IN ('assigned', 'starting', 'running', 'finalizing')"),
            postgresql_where=sa.text("state IN ('assigned', 'starting', 'running', 'finalizing')"),
        )
        batch_op.drop_index(
            "ix_attempt_held",
            sqlite_where=sa.text("released_at IS NULL"),
            postgresql_where=sa.text("released_at IS NULL"),
        )

    op.drop_table("attempt")
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_measurement_queued",
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        )

    op.drop_table("measurement")
    with op.batch_alter_table("batch", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_batch_search_id"))
        batch_op.drop_index(batch_op.f("ix_batch_owner"))

    op.drop_table("batch")
    op.drop_table("search")
    op.drop_table("codebase")
    op.drop_table("worker")
    op.drop_table("outbox")
    op.drop_table("lease")
    op.drop_table("leader")
    op.drop_table("idempotency_key")
    with op.batch_alter_table("environment", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_environment_name"))

    op.drop_table("environment")


TERMINAL = {
    "experiment": ("succeeded", "failed", "cancelled"),
    "measurement": ("succeeded", "failed", "cancelled"),
    "attempt": ("succeeded", "failed", "cancelled", "lost", "fenced"),
}


def _create_triggers() -> None:
    for table, states in TERMINAL.items():
        listed = ", ".join(f"'{s}'" for s in states)
        refused = f"OLD.state IN ({listed}) AND NEW.state <> OLD.state"
        if op.get_bind().dialect.name == "sqlite":
            op.execute(
                f"CREATE TRIGGER {table}_terminal BEFORE UPDATE OF state ON {table} "
                f"WHEN {refused} BEGIN SELECT RAISE(ABORT, 'terminal state is final'); END"
            )
            continue
        op.execute(
            f"CREATE FUNCTION {table}_terminal() RETURNS trigger AS $$ BEGIN "
            f"IF {refused} THEN RAISE EXCEPTION 'terminal state is final'; END IF; "
            "RETURN NEW; END $$ LANGUAGE plpgsql"
        )
        op.execute(
            f"CREATE TRIGGER {table}_terminal BEFORE UPDATE OF state ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION {table}_terminal()"
        )


def _drop_triggers() -> None:
    for table in TERMINAL:
        if op.get_bind().dialect.name == "sqlite":
            op.execute(f"DROP TRIGGER {table}_terminal")
        else:
            op.execute(f"DROP TRIGGER {table}_terminal ON {table}")
            op.execute(f"DROP FUNCTION {table}_terminal()")
