"""Quantities as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("2h", 7200), ("1d 4h 30m", 102600), ("1d4h30m", 102600), ("1.5 hours", 5400), ("0,5h", 1800),
        ("1:30:00", 5400), ("100:00", 360000), (" 2 H ", 7200), ("1 week", 604800), ("1h, 5min", 3900), ("0", 0),
    ],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "soon", "2 fortnights", "-1h", "1h 30", "1:75", "h", "1e9", "9" * 40, "٣h", "1h\0", "2h!"]
)
def test_what_is_no_duration_is_refused_by_its_code(text: str) -> None:
    with pytest.raises(units.BadQuantity) as caught:
        units.parse_duration(text)
    assert (caught.value.code, caught.value.text) == ("BAD_DURATION", text[:80])


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("16 GiB", 16384), ("1.5g", 1536), ("512M", 512), ("1 TiB", 1048576), ("2048k", 2), ("16GB", 16384),
        ("100Mi", 100), ("1Gi", 1024), ("2048Ki", 2), ("1.5Ti", 1572864), ("512mi", 512), ("1073741824b", 1024),
    ],
)  # fmt: skip
def test_sizes_are_binary_whatever_the_unit_is_called(text: str, mib: int) -> None:
    assert units.parse_memory_mib(text) == mib


@pytest.mark.parametrize(("text", "mib"), [("30", 30720), ("0.5", 512), (" 2 ", 2048), ("0", 0)])
def test_a_lone_number_of_memory_is_gib(text: str, mib: int) -> None:
    assert units.parse_memory_mib(text) == mib


@pytest.mark.parametrize(
    "text", ["", "lots", "16 gigs of it", "-1", "1e3", "1 PiB x", "999999999999 TiB", "nan", "inf"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(units.BadQuantity):
        units.parse_memory_mib(text)


def test_cpus_may_be_fractions_or_thousandths() -> None:
    assert [units.parse_millicpus(t) for t in ("4", "0.5", "500m", "0,25")] == [4000, 500, 500, 250]
    assert [units.parse_millicpus(t) for t in ("0.3333333333333", "1.9999999", "0.0004")] == [333, 2000, 0]


@given(st.integers(min_value=0, max_value=units.MOST))
def test_an_exact_duration_reads_back_as_itself(seconds: int) -> None:
    assert units.parse_duration(units.exact_duration(seconds)) == seconds


@given(st.text())
def test_no_text_makes_a_parser_fail_otherwise_than_by_refusing(text: str) -> None:
    for parse in (units.parse_duration, units.parse_memory_mib, units.parse_millicpus):
        try:
            assert 0 <= parse(text) <= units.MOST
        except units.BadQuantity:
            pass


def test_quantities_are_shown_short() -> None:
    assert [units.format_duration(s) for s in (0, 59, 65, 7200, 100800, 86401)] == [
        "0 s", "59 s", "1 min 5 s", "2 h", "1 d 4 h", "1 d",
    ]  # fmt: skip
    assert [units.format_memory(m) for m in (512, 1024, 1536, 40960, 1048576)] == [
        "512 MiB", "1 GiB", "1.5 GiB", "40 GiB", "1 TiB",
    ]  # fmt: skip
    assert [units.format_cpus(c) for c in (500, 4000, 250)] == ["0.5", "4", "0.25"]


def test_a_lone_number_is_minutes_in_a_limit_and_seconds_elsewhere() -> None:
    assert units.parse_limit("90") == 5400
    assert units.parse_limit("90s") == units.parse_duration("90") == 90
