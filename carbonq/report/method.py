"""The statement of method, boundary and limits: made of what is really in the month. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from carbonq.methods import METHODS
from carbonq.model import EntryKind, Signal
from carbonq.readable import energy
from carbonq.report import nearest
from carbonq.report.document import Head, Text, Totals
from carbonq.report.gather import Gathered, Meters

#: What the ledger's own saving is.
SAVING_WORDS = (
    "The saving compares what ran with the same IT energy in the home region, in the window in which a first-come, "
    "first-served queue on that region's slots would have run it, fixed when the job was submitted. Negative savings "
    "stay in. Work without a baseline (realtime) and work whose two rates are not alike in status are left out; the "
    "coverage says how much of the items' energy is compared."
)

#: What does not follow the time that a report is told as of.
_MEASURED_WORDS = (
    "Where jobs were held out at random or only observed, what was measured of them stands beside, of the ledger as it "
    "was when the report was made; it is another way to the same question and is added to nothing."
)

_NONE = "none"

#: How a meter's figure comes about.
_METERS = {
    "nvml_counter": "NVML energy counter",
    "nvml_power": "NVML power, sampled",
    "amdsmi": "AMD SMI counter",
    "dcgm": "DCGM counter",
    "rapl": "RAPL counter",
    "cpu_time": "CPU time x stated watts (estimate)",
    "tdp": "rated power x time (estimate)",
    "nameplate": "nameplate power x time (estimate)",
    "external": "external meter",
}


def statement(head: Head, totals: Totals, gathered: Gathered) -> tuple[Text, ...]:
    """Return the statement, a text for each question that an auditor asks."""
    return (
        Text("What this report is", tuple(_purpose(head))),
        Text("The two books", tuple(_books(totals))),
        Text("Formulas", tuple(_formulas(head))),
        Text("How energy was measured", tuple(_meters(gathered))),
        Text("PUE", tuple(_pue(gathered))),
        Text("Emission rates", tuple(_rates(gathered))),
        Text("Savings and avoidable carbon", (SAVING_WORDS, nearest.WORDS, _MEASURED_WORDS)),
        Text("Budgets and targets", tuple(_promises())),
        Text("Boundary", tuple(_boundary(head, totals))),
        Text("Limits", tuple(_limits(head, totals))),
    )


def _purpose(head: Head) -> Iterator[str]:
    whose = "all tenants and the overhead" if head.tenant is None else f"the work of tenant {head.tenant}"
    yield (
        f"Sums of the ledger over the windows of {head.month} (UTC), of {whose}. Each sum can be computed again from "
        "the export that the report names, line by line, with the standalone checker."
    )
    if head.clock is not None and head.clock != "real":
        yield (
            f"The month ran on the {head.clock} clock: grid time did not run with the wall clock, so these figures are "
            "of a demonstration or a replay and of no inventory."
        )
    if not head.is_over:
        yield "The month is not over: what still runs is not in it."
    if not head.is_fixed:
        yield "Entries that were being recorded when the report was made may be missing from it."


def _books(totals: Totals) -> Iterator[str]:
    yield (
        "Impact book: marginal rate (MOER) x energy, the change that running this work made to emissions. Inventory "
        "book: average rate (AER) x energy, location-based, what a greenhouse gas inventory reports. The two are never "
        "added, compared or mixed."
    )
    yield (
        "The marginal figures are a separate, consequential statement: they are no part of the location-based totals, "
        "which stand by hour and region in the inventory section, items and overhead together, as the GHG Protocol's "
        "Scope 2 Guidance asks of the location-based method."
    )
    yield (
        "Regions stated as owned or colocated stand there as scope 2, rented ones as scope 3 (category 1, purchased "
        "services). Which is right for a filing follows from its organisational boundary, above all for colocated "
        "hardware and for what PUE adds to it."
    )
    yield (
        "Market instruments (certificates, contracts) are in neither book, and no market-based total is in this "
        "report: where such instruments exist, the Scope 2 Guidance asks for one beside the location-based total, and "
        "it has to be made elsewhere, of these hours' kWh. Embodied and transfer carbon stand beside."
    )
    shares = (("impact", totals.provisional_share), ("inventory", totals.inventory_provisional_share))
    for book, share in shares:
        if share:
            yield (
                f"Of the items' energy {share:.1%} has a provisional rate in the {book} book: these figures change "
                "when the source publishes final values."
            )


def _formulas(head: Head) -> Iterator[str]:
    for name in head.methods:
        method = METHODS.get(name)
        if method is None:
            yield f"Method {name} is not registered in this version of carbonq."
            continue
        yield f"Method {name}:\n{method.formulas}"
        if method.changed is not None:
            yield f"{name} differs from the method before: {method.changed}"


def _meters(gathered: Gathered) -> Iterator[str]:
    rows = sorted(gathered.meters.items(), key=lambda row: -row[1].energy_uj)
    for meters, sums in rows:
        told = ", ".join(f"{part}: {_METERS.get(meter, meter)}" for part, meter in _used(meters))
        if sums.unmetered == sums.entries:
            yield f"{sums.unmetered:,} entries without energy, by {told or 'no meter'}."
            continue
        unmetered = f"; {sums.unmetered:,} entries have no energy" if sums.unmetered else ""
        yield f"{energy(sums.energy_uj)} {meters.quality} by {told or 'no meter'}{unmetered}."
    gpu_only = sum(
        sums.energy_uj for meters, sums in rows if meters.gpu != _NONE and {meters.cpu, meters.dram} == {_NONE}
    )
    if gpu_only:
        yield (f"GPU only: {energy(gpu_only)} of it counts accelerators alone, without the host's CPU and memory.")
    no_gpu = sum(sums.energy_uj for meters, sums in rows if meters.gpu == _NONE)
    if no_gpu:
        yield f"{energy(no_gpu)} were counted without any accelerator: CPU and memory alone, as far as named above."
    if not rows:
        yield "Nothing ran."


def _used(meters: Meters) -> list[tuple[str, str]]:
    named = zip(("GPU", "CPU", "DRAM"), (meters.gpu, meters.cpu, meters.dram), strict=True)
    return [(part, meter) for part, meter in named if meter != _NONE]


def _pue(gathered: Gathered) -> Iterator[str]:
    yield "PUE multiplies IT energy of every kind, as stated for the region when the energy was used."
    for region, pue, source in sorted(gathered.pue_sources):
        yield f"{region}: {pue} ({source})."


def _rates(gathered: Gathered) -> Iterator[str]:
    names = {Signal.MOER.value: "marginal", Signal.AER.value: "average"}
    for signal, source, model, gas in sorted(gathered.rate_sources, key=lambda one: tuple(map(str, one))):
        told = "" if model is None else f", model {model}"
        yield f"{names[signal]}: {source}{told}, in grams of {'CO2 alone' if gas == 'co2' else 'CO2e'}."
    yield from _scope_2(gathered)
    yield "A rate that is missing makes its figure unknown, never 0; how many entries that are stands beside each sum."


def _scope_2(gathered: Gathered) -> Iterator[str]:
    """Say where the average rates are not what Scope 2 counts: the emissions of generation, in CO2e."""
    rates = [key for key, _ in gathered.inventory.items() if key.source is not None]
    if any(key.gas == "co2" for key in rates):
        yield "Average rates of CO2 alone leave out methane and nitrous oxide, which a Scope 2 total in CO2e has in it."
    if any("lifecycle" in (key.method or "") for key in rates):
        yield (
            "Average rates by lifecycle have upstream emissions of fuels and plants in them; Scope 2 counts generation "
            "alone, and the rest belongs to Scope 3 (category 3). Their rows stand apart by method in the inventory "
            "section, and are above what Scope 2 asks for."
        )
    if rates:
        yield "Losses of transmission and distribution are added to no rate (Scope 3, category 3)."


def _promises() -> Iterator[str]:
    yield (
        "Budgets are those set when the report was made, in the book that each one names; spent is the sum of the "
        "month's items in the ledger, whatever a budget was during the month. A workload's cap is for each day (UTC)."
    )
    yield (
        "What smaller models saved is an estimate (the larger model's energy was not measured for that work); it has a "
        "line of its own and is in no other saving."
    )


def _boundary(head: Head, totals: Totals) -> Iterator[str]:
    yield (
        "In: energy of accelerators, CPU and memory as far as metered or estimated, times PUE. Beside, in neither "
        "book: embodied carbon of the region's stated hardware by device time, and transfer where stated."
    )
    yield "Not in: networks and storage outside the hosts, clients' devices, and what training the models took."
    yield (
        "SCI (ISO/IEC 21031): the standard counts idle and reserved hardware, which the scores with overhead have in "
        "them and the direct ones have not. E is as far as the meters reach; the rate is location-based in both books."
    )
    if head.tenant is not None:
        yield (
            "Idle and gap energy, and what lost or refused attempts at jobs wasted, belong to no tenant: they are in "
            "this report only where the SCI shares them out within region and month, by energy; those scores depend on "
            "how much others ran and wasted there. What the tenant's own realtime calls wasted is its overhead."
        )
    other = sum(row.energy_uj for row in totals.energy if row.kind == EntryKind.HOST_OTHER.value)
    if other:
        yield (
            f"host_other ({energy(other)}) is what other processes used on these devices: told by kind, in no total, "
            "no region and no hour."
        )


def _limits(head: Head, totals: Totals) -> Iterator[str]:
    if totals.measured_share is not None and totals.measured_share < 1:
        yield (
            f"{totals.measured_share:.1%} of the items' energy is measured by counters; the rest is mixed, estimated "
            "or an upper bound, as the rows by quality say."
        )
    unmetered = sum(row.unmetered_entries for row in totals.energy)
    unknown = (
        (unmetered, "have no energy"),
        (totals.impact.unknown_entries + totals.impact_overhead.unknown_entries, "have no marginal figure"),
        (totals.inventory.unknown_entries + totals.inventory_overhead.unknown_entries, "have no average figure"),
        (totals.no_embodied_entries, "of items have no embodied carbon"),
        (totals.no_transfer_entries, "of items have no transfer carbon"),
    )
    for count, what in unknown:
        if count:
            yield f"{count:,} entries {what}; their part is in no sum."
    yield (
        "A marginal rate is a model's estimate that nobody can observe; providers differ. A saving is a difference "
        "against a stated baseline and does not add up with what others claim."
    )
    if len(head.methods) > 1:
        yield "Entries of several methods are added up; each one is computed by its own."
