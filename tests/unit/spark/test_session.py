from sluice_spark.session import WORKER_ALLOCATOR, SessionSettings, session_conf


def test_session_conf_tells_workers_how_to_keep_memory_and_lets_people_overrule_it() -> None:
    """The allocator's settings reach the Python workers of executors; the caller's own win."""
    name = "spark.executorEnv.MALLOC_ARENA_MAX"
    conf = session_conf(SessionSettings(), delta=False)
    assert {
        f"spark.executorEnv.{key}": value for key, value in WORKER_ALLOCATOR.items()
    }.items() <= (conf.items())
    assert session_conf(SessionSettings(conf={name: "2"}), delta=False)[name] == "2"


def test_session_conf_asks_for_jars_only_when_the_jvm_needs_them() -> None:
    """Ingestion and maintenance commit by delta-rs; only Delta in the JVM, on S3, needs S3A."""
    assert "spark.jars.packages" not in session_conf(SessionSettings(), delta=False)
    local = session_conf(SessionSettings(), delta=True)["spark.jars.packages"]
    assert "hadoop-aws" not in local
    bucket = session_conf(SessionSettings(), delta=True, s3=True)["spark.jars.packages"]
    assert "hadoop-aws:3.4.2" in bucket
