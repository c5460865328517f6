"""Secrets are removed from a text in every form in which they occur."""

import pytest

from sluice_cli.deployment.redaction import HIDDEN, is_secret_option, remove_secrets


@pytest.mark.parametrize(
    "text",
    [
        "token slt_SECRETSECRET_-1 used",
        "Authorization: Bearer SECRETSECRET",
        "Authorization=Bearer%20SECRETSECRET",
        "authorization: basic U0VDUkVUU0VDUkVU",
        "key AKIASECRETSECRET1234 denied",
        "s3://user:SECRETSECRET@host/bucket",
        'api_token = "SECRETSECRET"',
        '"api_token": "SECRETSECRET"',
        "aws_secret_access_key=SECRETSECRET",
        "AWS_SESSION_TOKEN: SECRETSECRET",
        "?X-Amz-Signature=5ec2e75ec2e7&x=1",
        "-----BEGIN PRIVATE KEY-----\nSECRETSECRET\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nSECRETSECRET cut off",
    ],
)
def test_secrets_are_removed(text: str) -> None:
    cleaned = remove_secrets(text, ())
    assert HIDDEN in cleaned
    for secret in ("SECRETSECRET", "U0VDUkVUU0VDUkVU", "5ec2e75ec2e7"):
        assert secret not in cleaned


def test_a_known_value_is_removed_wherever_it_occurs() -> None:
    assert "hunter22" not in remove_secrets("a hunter22 b/hunter22", ("hunter22",))


def test_a_short_value_is_no_secret() -> None:
    assert remove_secrets("one of ten", ("one",)) == "one of ten"


@pytest.mark.parametrize("text", ["batch_accepted", "s3://bucket/prefix", "http://127.0.0.1:1/x"])
def test_ordinary_text_is_kept(text: str) -> None:
    assert remove_secrets(text, ()) == text


def test_options_with_secrets_are_known() -> None:
    assert is_secret_option("--api-token")
    assert is_secret_option("--operators")
    assert is_secret_option("--viewers")
    assert not is_secret_option("--principals")
    assert not is_secret_option("--listen")
