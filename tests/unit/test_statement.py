"""Providers' statements: read from CSV, and compared with the inventory book step by step.

The sample files are made by hand after the documented column names of each provider's export; none is recorded.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import statement
from carbonq.errors import InvalidRequest
from carbonq.statement import Booked, Columns, Stated, Statement

#: In uJ.
KWH = 3_600_000_000_000

AWS = """\
last_refresh_timestamp,location,model_version,payer_account_id,product_code,region_code,total_lbm_emissions_unit,\
total_lbm_emissions_value,total_mbm_emissions_unit,total_mbm_emissions_value,total_scope_2_lbm_emissions_unit,\
total_scope_2_lbm_emissions_value,usage_account_id,usage_period_end,usage_period_start
2026-12-21 00:00:00Z,EU (Paris),v3.0.0,1,AmazonEC2,eu-west-3,MTCO2e,0.5,MTCO2e,0.1,MTCO2e,0.25,2,\
2026-11-30 23:59:59Z,2026-11-01 00:00:00Z
2026-12-21 00:00:00Z,EU (Paris),v3.0.0,1,AmazonS3,eu-west-3,MTCO2e,0.5,MTCO2e,0.1,MTCO2e,1.25E-3,2,\
2026-12-01 00:00:00Z,2026-11-01 00:00:00Z
2026-12-21 00:00:00Z,EU (Paris),v3.0.0,1,AmazonEC2,eu-west-3,MTCO2e,9,MTCO2e,9,MTCO2e,9,2,\
2026-10-31 23:59:59Z,2026-10-01 00:00:00Z
"""

GOOGLE = """\
usage_month,billing_account_id,project.id,service.description,location.location,location.region,carbon_model_version,\
carbon_footprint_kgCO2e.scope1,carbon_footprint_kgCO2e.scope2.location_based,carbon_footprint_kgCO2e.scope2.market_based
2026-11-01,007GD7,web,Compute Engine,europe-west9-a,europe-west9,14,0.5,400,105.8
2026-11-01,007GD7,other,Compute Engine,europe-west9-b,europe-west9,14,0.5,100,
"""

GENERIC = """\
month;region;kWh;PUE;Location-based kgCO2e;Market-based kgCO2e
2026-11;fr;1200;1.2;60;1.5
2026-11;fr;600;1.2;30;0.5
2026-11;se;100;1.1;2;0
"""


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_an_aws_export_is_read_in_tonnes_of_scope_2() -> None:
    found = statement.read(lines(AWS), "2026-11", Columns(regions={"aws:eu-west-3": "fr"}))
    assert (found.provider, found.lines, found.left_out, found.covers) == ("aws", 2, 1, "scope 2, location-based")
    (fr,) = found.regions
    assert fr == Stated("fr", ("eu-west-3",), 2, None, None, None, None, Decimal(251250), Decimal(200000))


def test_an_aws_export_without_scopes_says_that_it_holds_all() -> None:
    old = AWS.replace("total_scope_2_lbm_emissions", "something_else")
    found = statement.read(lines(old), "2026-11")
    assert found.covers is not None
    assert "all scopes" in found.covers
    assert found.regions[0].location_g == 1_000_000


def test_a_google_export_is_read_and_an_empty_figure_is_unknown() -> None:
    found = statement.read(lines("\ufeff" + GOOGLE), "2026-11")
    (region,) = found.regions
    assert (found.provider, region.region, region.location_g, region.market_g) == (
        "google",
        "europe-west9",
        500_000,
        None,
    )
    one = statement.read(lines(GOOGLE), "2026-11", Columns(accounts={"web"}))
    assert (one.lines, one.left_out, one.regions[0].market_g) == (1, 1, 105_800)


def test_azure_figures_need_to_be_named_because_their_basis_is_not_documented() -> None:
    azure = "month,itemName,latestMonthEmissions\n2026-11,francecentral,12.5\n"
    with pytest.raises(InvalidRequest, match=r"no column for location_based.*'itemName', 'latestMonthEmissions'"):
        statement.read(lines(azure), "2026-11")
    named = Columns({"region": "itemName", "market_kg": "latestMonthEmissions"})
    found = statement.read(lines(azure), "2026-11", named)
    assert (found.covers, found.regions[0].region, found.regions[0].market_g) == (None, "francecentral", 12_500)


def test_a_generic_statement_has_energy_and_pue() -> None:
    fr, se = statement.read(lines(GENERIC), "2026-11").regions
    assert (fr.energy_uj, fr.facility_uj, fr.pue) == (
        1500 * 3_600_000_000_000,
        1800 * 3_600_000_000_000,
        Fraction(6, 5),
    )
    assert (fr.location_g, fr.market_g, se.location_g) == (90_000, 2_000, 2_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column for month"),
        ("month,region\n2026-11,fr\n", "nor for|no column for location_based"),
        ("month,location_based_kgco2e\n2026-13,1\n", "line 2 of the statement: '2026-13' is no month"),
        ("month,location_based_kgco2e\n2026-11,1\n\n2026-11,1_0\n", "line 4 .*location_based_kgco2e is '1_0'"),
        ("month,location_based_kgco2e\n2026-11,1e999\n", "line 2 .*not a number"),
        ("month,location_based_kgco2e\n2026-11,NaN\n", "line 2 .*not a number"),
        ("month,location_based_kgco2e\n2026-11\n", "line 2 .*1 fields instead of 2"),
        ("month,kwh,location_based_kgco2e\n2026-11,-1,1\n", "line 2 .*kwh is -1, below 0"),
        ("month,pue,location_based_kgco2e\n2026-11,0.9,1\n", "line 2 .*pue is 0.9, below 1"),
        ("start,end,location_based_kgco2e\n2026-11-01,2026-12-31,1\n", "line 2 .*more than a month"),
        ("start,end,location_based_kgco2e\n2026-11-01,soon,1\n", "line 2 .*'soon' is no date"),
        ("month,location_based_kgco2e\n2026-10,1\n", "no line of 2026-11 that counts .1 others"),
        ('month,location_based_kgco2e\n2026-11,"1\n', "line 2"),
        ("month,location_based_kgco2e\n2026-11," + "1" * 20_001, "at most"),
    ],
)
def test_bad_lines_name_line_and_field(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        statement.read(lines(text), "2026-11")


def test_a_unit_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"line 2 .*unit of total_scope_2_lbm_emissions_value is 'short tons'"):
        statement.read(lines(AWS.replace("MTCO2e,0.25", "short tons,0.25")), "2026-11")


def test_lines_are_bounded() -> None:
    endless = ["month,location_based_kgco2e\n", *["2026-11,1\n"] * statement.MAX_LINES]
    with pytest.raises(InvalidRequest, match=f"at most {statement.MAX_LINES:,} lines"):
        statement.read(endless, "2026-11")


@pytest.mark.parametrize("month", ["2026-13", "2026-11-01", "november", "2026-1"])
def test_the_month_is_checked(month: str) -> None:
    with pytest.raises(InvalidRequest, match="month is"):
        statement.read(lines(GENERIC), month)


def test_names_of_columns_and_regions_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="no field 'grams'"):
        statement.read(lines(GENERIC), "2026-11", Columns({"grams": "PUE"}))
    with pytest.raises(InvalidRequest, match="no column 'Strom' for kwh"):
        statement.read(lines(GENERIC), "2026-11", Columns({"kwh": "Strom"}))
    assert statement.read_region_map(["aws:eu-west-3=fr", "paris=fr"]) == {"aws:eu-west-3": "fr", "paris": "fr"}
    with pytest.raises(InvalidRequest, match="maps no region"):
        statement.read_region_map(["fr"])


def booked(**changes: object) -> Booked:
    values: dict[str, object] = {
        "region": "fr",
        "energy_uj": 1000 * KWH,
        "facility_uj": Decimal(1500 * KWH),
        "inventory_g": Decimal(75_000),
    }
    return Booked(**values | changes)  # pyright: ignore[reportArgumentType]


def test_a_difference_is_told_step_by_step() -> None:
    # Ours: 1,000 kWh x 1.5 x 50 g. Theirs: 1,500 kWh x 1.2 x 50 g: 25,000 g for energy, 22,500 g less for the PUE.
    found = statement.compare(statement.read(lines(GENERIC), "2026-11"), [booked(), booked(region="de")])
    (fr,) = found.regions
    assert (fr.difference_g, fr.energy_g, fr.pue_g) == (15_000, 37_500, -22_500)
    assert (fr.intensity_g, fr.rest_g, fr.is_implied, fr.untold) == (0, 0, True, None)
    assert ([one.region for one in found.only_stated], [one.region for one in found.only_booked]) == (["se"], ["de"])
    assert (found.stated_g, found.booked_g, found.difference_g, found.market_g) == (90_000, 75_000, 15_000, 2_000)


def test_grams_per_kwh_that_are_stated_leave_a_rest() -> None:
    text = "month,region,kwh,pue,g_per_kwh,location_based_kgco2e\n2026-11,fr,1800,1.2,40,90\n"
    (fr,) = statement.compare(statement.read(lines(text), "2026-11"), [booked()]).regions
    assert (fr.energy_g, fr.pue_g, fr.intensity_g, fr.rest_g, fr.is_implied) == (
        37_500,
        -22_500,
        -18_000,
        18_000,
        False,
    )


def test_without_energy_nothing_is_told_apart() -> None:
    found = statement.compare(statement.read(lines(GOOGLE), "2026-11"), [booked(region="europe-west9")])
    (one,) = found.regions
    assert (one.energy_g, one.pue_g, one.intensity_g, one.rest_g) == (None, None, None, 425_000)
    assert one.untold is not None
    assert "no kWh" in one.untold


def test_without_a_pue_energy_is_that_at_the_facilitys_meter() -> None:
    text = "month,region,kwh,location_based_kgco2e\n2026-11,fr,1800,90\n"
    (fr,) = statement.compare(statement.read(lines(text), "2026-11"), [booked()]).regions
    assert (fr.energy_g, fr.pue_g, fr.intensity_g, fr.rest_g) == (15_000, None, 0, 0)


def test_a_ledger_that_is_not_complete_is_not_told_apart() -> None:
    given_ = statement.read(lines(GENERIC), "2026-11")
    (fr,) = statement.compare(given_, [booked(unrated_entries=3)]).regions
    assert (fr.energy_g, fr.rest_g) == (None, 15_000)
    assert fr.untold is not None
    assert "3 no average rate" in fr.untold
    (unknown,) = statement.compare(given_, [booked(inventory_g=None)]).regions
    assert (unknown.difference_g, unknown.rest_g) == (None, None)


amounts = st.integers(1, 10**18)
decimals = st.decimals("-1e9", "1e9", places=15, allow_nan=False, allow_infinity=False)
ratios = st.fractions(1, 3, max_denominator=1000)


@given(
    location_g=decimals,
    inventory_g=decimals,
    facility_uj=amounts,
    ours_uj=amounts,
    pue=st.none() | ratios,
    our_pue=ratios,
    g_per_kwh=st.none() | st.fractions(0, 2000, max_denominator=1000),
)
def test_the_steps_sum_to_the_difference_exactly(
    *,
    location_g: Decimal,
    inventory_g: Decimal,
    facility_uj: int,
    ours_uj: int,
    pue: Fraction | None,
    our_pue: Fraction,
    g_per_kwh: Fraction | None,
) -> None:
    energy_uj = None if pue is None else round(facility_uj / pue)
    stated = Stated("fr", ("fr",), 1, energy_uj, facility_uj, pue, g_per_kwh, location_g, None)
    ours = Booked("fr", ours_uj, Decimal(round(ours_uj * our_pue)), inventory_g)
    (one,) = statement.compare(Statement("generic", "2026-11", None, 1, 0, (stated,)), [ours]).regions
    assert one.difference_g is not None
    assert one.rest_g is not None
    steps = [Fraction(step) for step in (one.energy_g, one.pue_g, one.intensity_g, one.rest_g) if step is not None]
    assert sum(steps) == Fraction(one.difference_g) == Fraction(location_g) - Fraction(inventory_g)
    if one.is_implied and pue is not None:
        assert abs(one.rest_g) <= Decimal("1e-14")  # rounding alone
