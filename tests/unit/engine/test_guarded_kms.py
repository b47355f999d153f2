"""Calls to a KMS: which are repeated, and what their failures become."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.engine.guarded_kms import RETRY_SECONDS, GuardedKms
from pravega_spark.errors import KeyUnavailable, KmsUnavailable
from tests.harness.fake_runtime import FakeRuntime


class Failing:
    """A client whose calls fail in turn."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        return key_bytes[::-1]

    def unwrap_key(self, wrapped_key: Any, master_key_identifier: str) -> bytes:
        return self.wrap_key(wrapped_key, master_key_identifier)


@pytest.mark.parametrize("method", ["wrap_key", "unwrap_key"])
def test_kms_that_cannot_be_reached_is_asked_again(method: str) -> None:
    client = Failing(ConnectionError("refused"), TimeoutError("late"), ConnectionResetError("cut"))
    assert getattr(GuardedKms(client, FakeRuntime()), method)(b"abc", "k") == b"cba"


def test_outage_that_lasts_is_an_error() -> None:
    runtime = FakeRuntime()
    began = runtime.monotonic()
    client = Failing(*[TimeoutError("late") for _ in range(10_000)])
    with pytest.raises(KmsUnavailable, match="failed for the key 'k': TimeoutError: late") as error:
        GuardedKms(client, runtime).unwrap_key("x", "k")
    assert error.value.key == "k"
    assert runtime.monotonic() - began >= RETRY_SECONDS
    assert isinstance(error.value.__cause__, TimeoutError)


@pytest.mark.parametrize("refusal", [KeyError("k"), LookupError("no"), PermissionError("denied")])
def test_refusal_is_final(refusal: Exception) -> None:
    client = Failing(refusal)
    with pytest.raises(KeyUnavailable, match="refuses the key 'k'") as error:
        GuardedKms(client, FakeRuntime()).wrap_key(b"abc", "k")
    assert type(error.value) is KeyUnavailable
    assert client.errors == []


def test_other_failures_are_not_repeated() -> None:
    client = Failing(RuntimeError("bug"), RuntimeError("bug"))
    with pytest.raises(KmsUnavailable, match="RuntimeError: bug"):
        GuardedKms(client, FakeRuntime()).wrap_key(b"abc", "k")
    assert len(client.errors) == 1


class Answering:
    """A client that gives the same answer to everything."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> Any:
        return self.answer

    def unwrap_key(self, wrapped_key: Any, master_key_identifier: str) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [None, 7, ["secret"], "", b"", b"\xffsecret", "\ud800"])
def test_wrapped_key_that_no_envelope_holds_is_refused(answer: Any) -> None:
    kind = type(answer).__name__
    with pytest.raises(KmsUnavailable, match=f"wrap_key .* for the key 'k' .*{kind}") as error:
        GuardedKms(Answering(answer), FakeRuntime()).wrap_key(b"abc", "k")
    assert error.value.key == "k"
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("answer", [None, 7, "secret", bytearray(b"secret"), [b"secret"]])
def test_unwrapped_key_of_another_type_is_refused(answer: Any) -> None:
    kind = type(answer).__name__
    with pytest.raises(KmsUnavailable, match=f"unwrap_key .* for the key 'k' .*{kind}") as error:
        GuardedKms(Answering(answer), FakeRuntime()).unwrap_key("x", "k")
    assert error.value.key == "k"
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("answer", ["text", b"bytes", "é".encode()])
def test_answers_are_passed_on(answer: Any) -> None:
    assert GuardedKms(Answering(answer)).wrap_key(b"abc", "k") == answer


@pytest.mark.parametrize("client", [None, object(), Failing])
def test_object_without_the_methods_is_no_client(client: Any) -> None:
    if client is Failing:
        client = type("Half", (), {"wrap_key": Failing.wrap_key})()
    with pytest.raises(KmsUnavailable, match=r"of type \w+, which has no (un)?wrap_key"):
        GuardedKms(client)
