import pytest

from sluice_spark.jvm import parse_java_version


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_parse_java_version_feature_release(text: str, expected: int | None) -> None:
    """Old and new version schemes give the feature release."""
    assert parse_java_version(text) == expected
