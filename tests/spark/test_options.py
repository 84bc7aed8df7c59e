"""Options and credentials as Spark hands them over: strict, helpful, and silent about secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from flight_service.client import BadRequest
from spark_client import options
from spark_client.credentials import Credentials
from spark_client.options import PUT, READ, TABLE, WRITE_STREAM, read

URL = "quiver://127.0.0.1:8815/logs"


def test_names_come_in_lower_case() -> None:
    """Scenario: Spark lowers names, people write them in any case. Guarantee: all the same, by
    their right names; what isn't said has its default."""
    for name in ("retryTimeout", "retrytimeout", "RETRYTIMEOUT"):
        values = read({"url": URL, name: "90s"}, PUT)
        assert values["retryTimeout"] == 90.0
        assert values["windowBundles"] == 64
        assert values.given == {"url", "retryTimeout"}


def test_a_path_is_a_url() -> None:
    """Scenario: load(url) and start(url), which Spark calls path. Guarantee: the same; both at
    once are refused."""
    assert str(read({"path": URL}, READ).target()) == URL
    with pytest.raises(BadRequest, match="url is given twice"):
        read({"path": URL, "url": URL}, READ)
    with pytest.raises(BadRequest, match=r'say .option\("url"'):
        read({}, READ).target()


def test_spark_s_own_options_pass() -> None:
    """Scenario: Spark hands its own options on to a sink. Guarantee: they don't disturb."""
    assert read({"url": URL, "checkpointlocation": "/x", "queryName": "q"}, WRITE_STREAM)


@pytest.mark.parametrize(
    ("given", "use", "says"),
    [
        ({"windowByte": "1MiB"}, PUT, "Did you mean windowBytes"),
        ({"tokne": "x"}, PUT, "Did you mean token"),
        ({"zzz": "x"}, PUT, "there is no option 'zzz'. Known: url"),
        ({"windowBytes": "1MiB"}, READ, "windowBytes means nothing for read"),
        ({"insecure": "yes"}, PUT, "insecure takes true or false, not 'yes'"),
        ({"windowBytes": "lots"}, PUT, "such as 64MiB"),
        ({"windowBytes": "1"}, PUT, "at least 65,536 bytes"),
        ({"timestampMode": "ns"}, READ, r"takes us \| long_ns"),
        ({"slot": "  "}, READ, "slot takes text"),
    ],
)
def test_slips_are_refused(given: dict[str, str], use: str, says: str) -> None:
    """Scenario: wrong names and values. Guarantee: refused with the right name or what is
    allowed, never taken for a default."""
    with pytest.raises(BadRequest, match=says):
        read(given, use)


def test_secrets_are_not_shown() -> None:
    """Scenario: a token among the options, right or where it can't be. Guarantee: no text made
    of them holds it."""
    values = read({"url": URL, "token": "hunter2"}, PUT)
    assert "hunter2" not in repr(values)
    assert "hunter2" not in repr(values.credentials())
    assert "hunter2" not in str(values.credentials())
    assert {one.name for one in TABLE if one.secret} == {"token"}


def test_every_option_is_documented() -> None:
    """Scenario: the table. Guarantee: names are unique whatever their case, defaults can be read,
    each says what it does, and each is in the table of the page."""
    names = [name.lower() for one in TABLE for name in (one.name, *one.aliases)]
    assert len(set(names)) == len(names)
    for one in TABLE:
        assert one.help.endswith("."), one.name
        assert one.uses <= options.ALL
        assert one.default is None or one.kind.read(one.default) is not None
        assert f"| `{one.name}` |" in options.described()


def test_options_win_over_the_environment(tmp_path: Path) -> None:
    """Scenario: tokens and certificates from options, files and variables. Guarantee: an option
    wins; files are read on the driver; what is read is bytes that can travel."""
    token, pem = tmp_path / "token", tmp_path / "ca.pem"
    token.write_text("from-file\n")
    pem.write_bytes(b"PEM")
    env = {"QUIVER_TOKEN": "from-env", "QUIVER_CA": str(pem)}
    assert Credentials.gather(env=env).token == "from-env"
    assert Credentials.gather(env=env).ca == b"PEM"
    assert Credentials.gather(token="option", env=env).token == "option"
    by_file = Credentials.gather(token_file=str(token), env=env)
    assert by_file.token == "from-file"
    assert Credentials.gather(env={"QUIVER_TOKEN_FILE": str(token)}).token == "from-file"
    with pytest.raises(BadRequest, match="tlsKey: /nowhere/key can't be read on the driver"):
        Credentials.gather(tls_key="/nowhere/key", env={})


def test_a_token_does_not_go_out_in_the_clear() -> None:
    """Scenario: a token for another machine without TLS. Guarantee: refused before a byte is
    sent, unless insecure says otherwise."""
    values = read({"url": "quiver://192.0.2.1/logs", "token": "hunter2"}, PUT)
    with pytest.raises(BadRequest, match="in the clear") as refused:
        values.credentials().connect(values.target(), wait=0.0)
    assert "hunter2" not in str(refused.value)
