"""Sample documents of our own: a deterministic generator of short notes, and the files that ship.

``python -m carbonq.demo.samples COUNT`` prints as many documents as JSON lines; the file that ships was made so.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

SAMPLES = Path(__file__).resolve().parent.parent / "data" / "samples"

#: 2,400 short notes, ``{"id", "text"}`` lines, compressed.
DOCUMENTS = SAMPLES / "documents.jsonl.gz"

#: Six longer texts written by hand, to be summarised.
ARTICLES = SAMPLES / "articles.jsonl"

#: The number of documents in ``DOCUMENTS``.
COUNT = 2_400

_PLACES = (
    "the harbour office", "the north workshop", "ward seven", "the city library", "the Linden Street depot",
    "the seed store", "the old observatory", "the ferry terminal", "the ceramics studio", "the mountain hut",
    "the swimming hall", "the weather station", "the school kitchen", "the tram yard", "the tide mill",
    "the print room", "the orchard at Fellbach", "the night market", "the glass house", "the river lock",
)  # fmt: skip
_PEOPLE = (
    "Amina", "the duty engineer", "Jonas", "our apprentice", "the head gardener", "Mei-Lin", "the night porter",
    "Dr. Okafor", "the volunteer team", "Sofia", "the caretaker", "the ferry crew", "Piotr", "the new librarian",
    "a visiting nurse", "the baker's daughter", "Ravi", "the survey party", "the stage crew", "Ingrid",
)  # fmt: skip
_TIMES = (
    "before sunrise", "on Monday", "during the lunch break", "shortly after closing", "on the first dry day",
    "in the second week of May", "while the power was off", "at low tide", "late on Friday", "after the storm",
    "between two deliveries", "at the end of the shift",
)  # fmt: skip

#: Topic -> (things, what happened to them, what was done about it, what follows from it).
_TOPICS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "maintenance": (
        ("the feed pump", "a bearing on the conveyor", "the roof hatch", "the compressor", "the lift door", "a relay"),
        (
            "ran hot and tripped twice",
            "made a grinding noise",
            "leaked a cup of oil",
            "would not close fully",
            "drew a third more current than usual",
            "stopped without any alarm",
        ),
        (
            "replaced the seal and flushed the line",
            "tightened the mounting and logged the torque",
            "swapped it for the spare from the cage",
            "cleaned the contacts and ran it for an hour",
            "took photographs and locked it out",
        ),
        (
            "A spare has to be ordered this week.",
            "The same fault showed up in autumn, so the cause is still there.",
            "It may run until the planned stop.",
            "Please check the twin unit as well.",
            "Vibration will be measured daily from now on.",
        ),
    ),
    "kitchen": (
        (
            "the barley soup",
            "a tray of plum cake",
            "the rye starter",
            "the pickled beetroot",
            "the lentil stew",
            "the fish pie",
        ),
        (
            "came out too salty for most guests",
            "was gone within twenty minutes",
            "rose more slowly than expected",
            "kept well for nine days in the cold room",
            "needed twice the stock the recipe names",
            "tasted better on the second day",
        ),
        (
            "halved the salt and added a little vinegar",
            "baked a second batch at a lower heat",
            "moved it nearer to the oven overnight",
            "wrote the changed amounts on the card",
            "served it with yoghurt and dill instead",
        ),
        (
            "The card in the drawer is up to date again.",
            "Next time we should soak the grain first.",
            "Guests asked for the recipe twice.",
            "It costs less than the old version.",
            "Label the jars with the day they were filled.",
        ),
    ),
    "garden": (
        (
            "the pear espalier",
            "the bean rows",
            "a hive by the south wall",
            "the compost bay",
            "the young hazels",
            "the winter lettuce",
        ),
        (
            "showed rust on the lower leaves",
            "flowered ten days early",
            "swarmed into the neighbour's ash",
            "dried out along the wall",
            "were eaten down to the stem by hares",
            "stood in water up to the root collar",
        ),
        (
            "cut out the infected wood and burned it",
            "covered everything with fleece for three nights",
            "caught it in a skep and settled it at dusk",
            "dug a shallow drain towards the ditch",
            "put up a fence of split chestnut",
        ),
        (
            "The harvest will be smaller but sound.",
            "We keep seed from the plants that came through.",
            "Water only in the morning until it has rained.",
            "The bees have stayed so far.",
            "Mulch is needed before the next frost.",
        ),
    ),
    "support": (
        (
            "a customer's invoice",
            "the export button",
            "the password mail",
            "a shared calendar",
            "the scanner app",
            "the delivery tracker",
        ),
        (
            "showed the amount in the wrong currency",
            "did nothing after the last update",
            "arrived six hours late",
            "lost every entry older than a year",
            "asked for the same permission again and again",
            "gave two different answers on two phones",
        ),
        (
            "reproduced it with a test account and wrote down the steps",
            "rolled the change back for this customer",
            "cleared the stuck queue and watched it drain",
            "restored the data from the nightly copy",
            "explained the workaround on the telephone",
        ),
        (
            "The customer was friendly and is waiting for a date.",
            "A test for this case is missing and should be written.",
            "Three more people reported it since.",
            "The ticket stays open until the fix is out.",
            "The help page describes the old behaviour.",
        ),
    ),
    "field work": (
        (
            "the water gauge",
            "a bat colony",
            "the dune path",
            "the boundary stone",
            "a patch of orchids",
            "the snow profile",
        ),
        (
            "read eleven centimetres above last year",
            "has grown to about sixty animals",
            "was washed away over forty metres",
            "had sunk and leaned to the east",
            "was trampled at the edge but intact inside",
            "had a weak layer a hand's width below the surface",
        ),
        (
            "repeated the reading twice and averaged it",
            "counted again with the infrared camera",
            "marked a detour with red posts",
            "took the position with two receivers",
            "closed the slope and told the wardens",
        ),
        (
            "The series now covers twelve seasons.",
            "Visitors should keep to the upper trail.",
            "The figures go to the county by the end of the month.",
            "Bring the longer rope next time.",
            "Nothing else unusual was seen.",
        ),
    ),
    "culture": (
        (
            "the evening concert",
            "a box of glass negatives",
            "the puppet theatre",
            "the reading group",
            "the town archive",
            "an exhibition about bridges",
        ),
        (
            "drew more people than there were chairs",
            "turned out to show the market in 1911",
            "had to pause when a lamp failed",
            "argued about the last chapter until ten",
            "received two metres of letters from an estate",
            "was visited by four school classes in a day",
        ),
        (
            "borrowed benches from the parish hall",
            "scanned every plate and noted the street names",
            "went on with torches, to much applause",
            "agreed to read a shorter book next",
            "sorted the papers by decade and dried the damp ones",
        ),
        (
            "We should print more programmes.",
            "Two families recognised their grandparents.",
            "The lamp is repaired.",
            "Everybody may see the list at the desk.",
            "It will be repeated in spring.",
        ),
    ),
    "transport": (
        (
            "the number four tram",
            "a cargo bike",
            "the car ferry",
            "the snow plough",
            "the night train",
            "the drawbridge",
        ),
        (
            "was held up by a parked van for half an hour",
            "broke a spoke under a load of books",
            "sailed with only one engine",
            "ran out of grit at the top of the pass",
            "left on time although two carriages were missing",
            "stayed open because a sensor had frozen",
        ),
        (
            "sent a second vehicle from the depot",
            "trued the wheel by the roadside",
            "reduced the number of crossings",
            "filled up at the quarry and went on",
            "moved the passengers to the front of the train",
        ),
        (
            "Delays were below ten minutes by noon.",
            "A sign at the corner would help.",
            "The report has gone to the authority.",
            "The part is expected on Thursday.",
            "No connection was missed in the end.",
        ),
    ),
    "health": (
        (
            "the vaccination morning",
            "a new hearing aid",
            "the walking group",
            "the blood fridge",
            "the eye test bus",
            "the first-aid course",
        ),
        (
            "was fully booked within a day",
            "whistled whenever its owner laughed",
            "covered six kilometres without a break",
            "warmed up by two degrees overnight",
            "found four people who should not drive in the dark",
            "had more questions than time",
        ),
        (
            "opened a second table and stayed an hour longer",
            "fitted a smaller ear piece",
            "agreed on a slower pace for the last third",
            "moved the stock and called the service",
            "wrote letters to their doctors with their consent",
        ),
        (
            "Everyone who came was seen.",
            "The next date is in six weeks.",
            "Nobody was hurt, and nothing was lost.",
            "The leaflet needs larger print.",
            "We need two more helpers.",
        ),
    ),
}

_OPENINGS = (
    "{time_cap}, {thing} at {place} {event}.",
    "Note on {topic}: {thing} at {place} {event} {time}.",
    "{person_cap} reports from {place} that {thing} {event} {time}.",
    "{thing_cap} at {place} {event}; {person} noticed it {time}.",
)
_MIDDLES = (
    "{person_cap} {action}, which took {number} {unit}.",
    "{person_cap} {action} with the help of {other}, after {number} {unit} of trying other things.",
    "Together with {other}, {person} {action}; that was done within {number} {unit}.",
)


def documents(count: int, *, seed: int = 20_260) -> Iterator[dict[str, str]]:
    """Yield distinct short notes ``{"id", "text"}``, of about 40 to 70 words; the same for the same arguments."""
    chance = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        text = _note(chance)
        if text not in seen:
            seen.add(text)
            yield {"id": f"note-{len(seen):05d}", "text": text}


def _note(chance: random.Random) -> str:
    topic = chance.choice(sorted(_TOPICS))
    things, events, actions, outcomes = _TOPICS[topic]
    person, other = chance.sample(_PEOPLE, 2)
    words = {
        "topic": topic, "thing": chance.choice(things), "event": chance.choice(events), "time": chance.choice(_TIMES),
        "place": chance.choice(_PLACES), "person": person, "other": other, "action": chance.choice(actions),
        "number": str(chance.randint(2, 55)), "unit": chance.choice(("minutes", "hours")),
    }  # fmt: skip
    words |= {f"{name}_cap": words[name][:1].upper() + words[name][1:] for name in ("thing", "time", "person")}
    parts = [chance.choice(_OPENINGS).format_map(words), chance.choice(_MIDDLES).format_map(words)]
    parts += chance.sample(outcomes, chance.choice((1, 2, 2)))
    return " ".join(parts)


def read_documents() -> list[bytes]:
    """Return the lines of the documents that ship."""
    return gzip.decompress(DOCUMENTS.read_bytes()).splitlines(keepends=True)


def read_articles() -> list[bytes]:
    """Return the lines of the articles that ship."""
    return ARTICLES.read_bytes().splitlines(keepends=True)


if __name__ == "__main__":
    for document in documents(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT):
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
