"""The routine task set: one application with twelve tools. A seeded generator makes the requests.

The test set gets every fourth opening and value, and every third variant of a phrasing if its words occur in others. So
it has sentences and values that training never showed, like another user of the same application. (An earlier version
held out whole phrasings: the model had to guess that "prompt me" is a reminder and "put on record" a note, which is
not routine.) Closed lists (rooms, days, units) are part of the tools and shared.

Small words (the, our, was) are not held out. While they were, "the reception" was called "reception" and "was sold"
became "is sold", which was half of all mistakes of teacher and student.

Most free values in training are generated from words of the model's vocabulary. A student that sees thirty cities
learns thirty cities: trained on the pools alone, ten layers got 29 % of the test requests right and wrote the nearest
city they knew. It must learn to copy, and a word after a quotation mark is another token than after a space, so it
learns to copy word by word.
"""

from __future__ import annotations

import itertools
import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from headway.bench.client import WORDS
from headway.evals.tool_calls import Expected, Task

Part = Literal["train", "test"]
Pool = Sequence[Any]
Phrase = str | tuple[str, dict[str, Any]]


def words(text: str) -> list[str]:
    return [one.strip() for one in text.replace("\n", " ").split(",") if one.strip()]


ROOMS = words("kitchen, bedroom, living room, bathroom, hallway, office, garage, balcony")
DAYS = words("today, tomorrow, monday, tuesday, wednesday, thursday, friday, saturday, sunday")
SWITCH = words("on, off")
LISTS = words("shopping, packing, wishes, chores, party")
UNITS = {
    "length": words("meters, feet, inches, miles, kilometers, yards"),
    "weight": words("grams, pounds, ounces, kilograms"),
    "volume": words("liters, gallons, cups, pints"),
}
ALL_UNITS = [unit for units in UNITS.values() for unit in units]
NAMES = words("""
Anna, Ben, Carla, David, Elena, Farid, Greta, Hugo, Ines, Jonas, Kira, Leo, Maria, Nils, Olga, Paul, Rosa, Sami, Tara,
Uwe, Vera, Will, Yara, Zoe, my sister, my brother, the dentist, the plumber, grandma, my boss, the landlord, the school,
uncle Tom, aunt May, the bakery, our neighbour, Doctor Lee, Mister Green, coach Kim, the reception
""")
CITIES = words("""
Berlin, Oslo, Lisbon, Tokyo, Cairo, Lima, Rome, Dublin, Vienna, Toronto, Sydney, Mumbai, Nairobi, Chicago, Boston,
Seattle, Madrid, Athens, Prague, Warsaw, Helsinki, Geneva, Porto, Kyoto, Seoul, Havana, Denver, Austin, Hamburg, Milan,
Naples, Zagreb, Riga, Bergen, Lyon, Malaga, Quito, Accra, Dakar, Perth
""")
ITEMS = words("""
milk, eggs, bread, apples, rice, olive oil, batteries, soap, candles, coffee, tea bags, onions, garlic, tomatoes, flour,
sugar, butter, cheese, oranges, a charger, socks, sunscreen, a tent, matches, paper towels, dog food, light bulbs, tape,
a scarf, honey, lemons, yogurt, noodles, pepper, toothpaste, a hammer, balloons, napkins, ice cubes, blueberries
""")
THINGS = words("""
the meeting, the car, the package, the report, dinner, the key, the ticket, the laundry, the cake, the garden, the bike,
the printer, the invoice, the cat, the passport, the heating, the concert, the contract, the door code, the roof
""")
STATES = words("""
is ready, is late, is broken, needs paint, is on the table, starts at noon, is too expensive, can wait, looks great,
must be signed, is in the blue box, was sold, needs a new lock, is under the stairs, works again, got lost
""")
CHORES = words("""
call the bank, water the plants, take the pills, pay the rent, feed the fish, book a hotel, wash the car, buy stamps,
clean the oven, back up the photos, renew the library card, pick up the kids, charge the camera, empty the bins,
fix the fence, order new glasses, return the parcel, cut the hedge, print the map, iron the shirts
""")
EVENTS = words("""
yoga class, team lunch, haircut, piano lesson, book club, budget review, birthday party, chess night, dental check,
car inspection, parents evening, job interview, tennis match, choir practice, wine tasting, flat viewing, garden party,
project kickoff, eye test, cooking course
""")
MUSIC = words("""
quiet piano, nineties rock, morning jazz, rainy day blues, Mozart, summer hits, guitar solos, movie themes, slow reggae,
deep focus beats, Bach, old country songs, salsa classics, ocean sounds, Vivaldi, folk ballads, happy disco,
choir music, night drive synths, Chopin
""")
SENTENCES = words("""
where is the station, good morning, thank you very much, I am hungry, how much is this, see you soon, the soup is cold,
my name is on the list, I need a doctor, it is raining, can you help me, the train is late, I like your hat,
two coffees please, what time is it, we are lost, the room is too small, happy birthday, I forgot my bag,
open the window
""")
LANGUAGES = words("""
French, Spanish, German, Italian, Japanese, Polish, Dutch, Greek, Turkish, Swedish, Korean, Finnish, Czech, Danish,
Arabic, Hindi, Portuguese, Norwegian, Hungarian, Thai
""")
FOLDERS = words("work, home, ideas, travel, recipes, school, health, books, money, garden, projects, family")
FREE = {"label", "text", "to", "name", "folder", "city", "title", "item", "query", "language"}
MADE_UP_SHARE, SPELT_SHARE = 0.7, 0.3  # of values; of their words, those made of SYLLABLES
WHOSE = words("the, a, an, my, our, your, his, her, their, this, that, some, two")
SMALL = words("""
is, are, was, were, be, has, have, had, will, can, must, not, no, and, or, of, in, on, at, to, for, with, from, by, it,
we, they, I, you, me, us, there, here, so, too, very
""")
# How often a value of each kind begins with a word of WHOSE, and has one of SMALL between its words.
WHOSE_SHARE = {"to": 0.35, "name": 0.35, "item": 0.35, "text": 0.5}
SMALL_SHARE = {"text": 0.4, "query": 0.1, "title": 0.1, "item": 0.1}
SYLLABLES = words("""
ba, ren, ko, lin, mar, tes, vo, dan, pir, sel, gu, har, ni, lo, cas, tre, wen, fa, bri, mon, del, ish, ur, zan, pel,
qui, ras, tok, em, yor, cha, ver, los, kin, ath, pru, sto, jel, ov, mi
""")
TIMES = [f"{hour}:{minute:02}" for hour in range(6, 23) for minute in range(0, 60, 5)]
OPENINGS = words("""
Hey, Okay, Please, Right, Hello, Quickly, Well, Good morning, Hi, Hey there, Good evening, Listen, Excuse me, So,
Alright, One more thing
""")
CLOSINGS = [", please", ", thanks", ", thank you", ", if you can", " please", ", many thanks", ", will you", ", okay"]


@dataclass(frozen=True)
class Tool:
    """`phrases` have arguments in braces and [alternative|wordings]. A tuple adds the arguments that it implies."""

    name: str
    description: str
    arguments: dict[str, dict[str, Any]]  # JSON schema of each
    required: tuple[str, ...]
    pools: dict[str, Pool]
    phrases: Sequence[Phrase]

    def schema(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": self.arguments, "required": list(self.required)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def one_of(values: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


APPLICATION = [
    Tool(
        "set_timer", "Start a countdown.", {"minutes": WHOLE, "label": TEXT}, ("minutes",),
        {"minutes": range(2, 121), "label": words("pasta, pizza, nap, workout, bread, tea, break, homework, yoga")},
        ["[set|start|make|create] a timer [for|of] {minutes} minutes",
         "[start|set|begin|run] a {minutes} minute timer", "count [down |][from |]{minutes} minutes[| for me]",
         "[give me|put|I need] {minutes} minutes on the [clock|timer]",
         "timer[,|:] {minutes} minutes[,|] for {label}",
         "[set|start] a {minutes} minute timer [called|named|for] {label}",
         "[let me know|tell me|say so] when {minutes} minutes [are over|are up|have passed]",
         "[begin|start|run] a countdown of {minutes} minutes", "[wake|alert|ping] me in {minutes} minutes",
         "I [need|want|would like] a {minutes} minute timer [named|called] {label}",
         "[start|set] [a|the] {label} timer [with|for|of] {minutes} minutes",
         "[run|put|have] a timer of {minutes} minutes[| on]", "{minutes} minutes from now, [ring|beep|alarm]",
         "[new|another|one more] timer: {minutes} minutes", "timer for [the |my |]{label}, {minutes} minutes",
         "[time|clock] {minutes} minutes [for me|from now]", "[can|could|would] you [time|count] {minutes} minutes",
         "{minutes} minute [timer|countdown|alarm]", "{minutes} minutes for the {label}, [start now|go|begin]",
         "[beep|ring] [after|in] {minutes} minutes"],
    ),
    Tool(
        "add_reminder", "Remind the user of something.", {"text": TEXT, "time": TEXT}, ("text", "time"),
        {"text": CHORES, "time": TIMES},
        ["[remind me|please remind me|do remind me] to {text} at {time}",
         "at {time} [please |do |]remind me to {text}", "[set|make|add] a reminder for {time}: {text}",
         "[do not let me forget|I should not forget|I must not forget] to {text} at {time}",
         "I [have|need|want] to {text} at {time}, [remind me|do remind me]",
         "[reminder|a reminder|one reminder] at {time} to {text}", "make sure [I|that I|I do] {text} at {time}",
         "[tell me|let me know|nudge me] at {time} to {text}", "I [must|should|have to] {text}, remind me at {time}",
         "create a [new |]reminder to {text} [for|at] {time}", "{time} reminder[: |, | to ]{text}",
         "[nudge me|poke me|give me a nudge] at {time} to {text}",
         "[remember|help me remember] to {text} at {time}[| today]",
         "at {time} I [must|should|have to] {text}, remind me", "[new|another|one more] reminder, {time}: {text}",
         "[prompt|alert|notify] me at {time} to {text}", "remind me at {time} that I [have to|must|should] {text}",
         "[could|can|would] you remind me to {text} at {time}",
         "when it is {time}, [tell me|remind me|alert me] to {text}",
         "I will forget to {text}, so [remind|alert|nudge] me at {time}"],
    ),
    Tool(
        "set_light", "Switch or dim a light.", {"room": one_of(ROOMS), "state": one_of(SWITCH), "percent": WHOLE},
        ("room", "state"), {"room": ROOMS, "percent": range(5, 101)},
        [("[turn|switch] on the [light|lights|lamp] in the {room}", {"state": "on"}),
         ("[turn|switch] off the {room} [light|lights|lamp]", {"state": "off"}),
         ("[turn|switch] the {room} [light|lamp] on", {"state": "on"}),
         ("[lights out|lights off|no light] in the {room}", {"state": "off"}),
         ("[set|put|bring] the {room} light [to|at] {percent} percent", {"state": "on"}),
         ("make it [dark|pitch dark|all dark] in the {room}", {"state": "off"}),
         ("it is [too|so|very] dark in the {room}", {"state": "on"}),
         ("[switch|turn|shut] off the [lamp|light] in the {room}", {"state": "off"}),
         ("{room} [light|lamp|lights] on at {percent} percent", {"state": "on"}),
         ("nobody is in the {room}, [light|lights|lamp] off", {"state": "off"}),
         ("[light up|brighten|illuminate] the {room}", {"state": "on"}),
         ("[dim|lower] the {room} [|light ]to {percent} percent", {"state": "on"}),
         ("I am leaving the {room}, [turn|switch|put] the light off", {"state": "off"}),
         ("I [need|want|would like] light in the {room}", {"state": "on"}),
         ("[dim|set|turn] the lights in the {room} to {percent} percent", {"state": "on"}),
         ("the light in the {room} [can go off|should be off|can be off]", {"state": "off"}),
         ("{percent} percent [light|brightness|lamp] in the {room}", {"state": "on"}),
         ("[kill|cut] the [light|lights] in the {room}", {"state": "off"}),
         ("[get|put|switch] the {room} lights on", {"state": "on"}),
         ("{room} [light|lights|lamp] off", {"state": "off"})],
    ),
    Tool(
        "send_message", "Send a text message.", {"to": TEXT, "text": TEXT}, ("to", "text"),
        {"to": NAMES, "text": [f"{thing} {state}" for thing in THINGS for state in STATES]},
        ["send {to} a [message|text|short message] saying {text}", "[text|message|inform] {to} that {text}",
         "[tell|please tell|do tell] {to} {text}", "[message|text|sms] {to}: {text}",
         "write [to |a message to |a text to ]{to} that {text}", "let {to} know [|that |this: ]{text}",
         "send a [text|message|short message] to {to}: {text}", "[inform|notify|tell] {to} that {text}",
         "I want {to} to [know|hear|learn] that {text}", "[message|text|sms] to {to}, {text}",
         "drop {to} a [line|message|text]: {text}", "[write|text|tell] {to}: {text}",
         "send {to} [this|the following|these words]: {text}", "[type|write|send] a message to {to}: {text}",
         "{to} [should|must|has to] know that {text}", "[could|can|would] you text {to} that {text}",
         "[new|another|one more] message for {to}: {text}", "give {to} the [news|message|information] that {text}",
         "send [word|a message|a text] to {to} that {text}"],
    ),
    Tool(
        "call_contact", "Start a phone call.", {"name": TEXT}, ("name",), {"name": NAMES},
        ["call {name}[| now| for me]", "phone {name}[| now| for me]", "ring {name}[| now| for me]",
         "give {name} a [call|ring|phone call]", "I [need|have|want] to speak [to|with] {name}",
         "[dial|call|phone] {name} [|right away|at once]", "get {name} on the [phone|line|telephone]",
         "[start|begin|make] a call with {name}", "[connect|put] me [to|through to] {name}[| now]",
         "I [want|would like|need] to talk [with|to] {name}", "make a [phone call|call|quick call] to {name}",
         "place a [call|phone call|quick call] to {name}", "[can|could|would] you call {name}",
         "I want to [call|phone|ring] {name}", "[ring|call|phone] up {name}",
         "[try|reach|get] {name} [on the phone|by phone]", "[phone call|call|a call] to {name}",
         "[let us|let me|I will] call {name}", "[dial|get me|call] the number of {name}"],
    ),
    Tool(
        "add_note", "Write a note.", {"text": TEXT, "folder": TEXT}, ("text",),
        {"text": [f"{thing} {state}" for thing in THINGS for state in STATES], "folder": FOLDERS},
        ["[note|please note|do note] that {text}", "write down [that |: |]{text}", "[make|add|write] a note: {text}",
         "[take|make|write] a [short |quick |]note: {text}", "add to my {folder} notes[: | that |, ]{text}",
         "[note|put a note|a note] in {folder}: {text}", "[jot|write|note] down[|:] {text}",
         "[new|another|one more] note, {text}", "[save|keep|store] a note in {folder} saying {text}",
         "keep [in mind|a note|noted] that {text}", "[put|save|store] this in my notes: {text}",
         "[record|put on record|note] that {text}", "[make|take|keep] a note that {text}",
         "in my {folder} notes, [write|add|put] that {text}", "note to [self|myself|me]: {text}",
         "[write|put|note] in the {folder} folder that {text}", "[a new|another|one] note in {folder}: {text}",
         "[take|write|note] down that {text}", "save [as a|the|this] note: {text}"],
    ),
    Tool(
        "get_weather", "Weather of a place.", {"city": TEXT, "day": one_of(DAYS)}, ("city",),
        {"city": CITIES, "day": DAYS},
        ["[what is|how is|tell me] the weather in {city}", "[how is|what is|how will be] the weather in {city} {day}",
         "[the |]weather [for|in|at] {city}", "will it [rain|snow|storm] in {city} {day}",
         "do I need [an umbrella|a coat|a jacket] in {city}", "is it [cold|hot|windy] in {city} {day}",
         "give me the [forecast|weather|weather report] for {city} {day}",
         "[tell|show|give] me the weather in {city}", "is it [sunny|raining|snowing|cloudy] in {city}",
         "what will [it|the weather|the day] be like in {city} {day}", "how [warm|cold|hot] is it in {city}",
         "[forecast|weather forecast|weather] {city} {day}", "[check|look up|find] the weather in {city} {day}",
         "what is the [temperature|forecast|weather] in {city}", "will it be [warm|cold|sunny|dry] in {city} {day}",
         "does it [rain|snow|storm] in {city}", "{city} [weather|forecast|weather report] {day}",
         "should I [pack|take|wear] [an umbrella|a coat] for {city}",
         "how [warm|wet|windy] will it be in {city} {day}", "what does the [sky|weather|day] look like in {city}"],
    ),
    Tool(
        "add_event", "Add to the calendar.", {"title": TEXT, "day": one_of(DAYS), "time": TEXT}, ("title", "day"),
        {"title": EVENTS, "day": DAYS, "time": TIMES},
        ["[add|put|enter] {title} [to|in] my calendar {day} at {time}",
         "[schedule|plan|set] {title} for {day} at {time}", "put {title} on {day} in [the|my|our] calendar",
         "I [have|have got|got] a {title} {day} at {time}", "[block|reserve|keep] {day} for {title}",
         "[plan|schedule|arrange] {title} {day} at {time}", "[new|another|one more] event: {title}, {day}, {time}",
         "[calendar|event|appointment]: {title} {day}", "[book|reserve|enter] {title} {day} at {time}",
         "enter {title} in [my|the|our] calendar for {day} at {time}",
         "[there is|I have|we have] a {title} {day} at {time}",
         "make an [appointment|entry|event] for {title} {day} at {time}",
         "[create|make|add] a calendar entry for {title} {day}",
         "add an [event|appointment|entry] {day} at {time}: {title}", "my {title} is [on |set for |]{day} at {time}",
         "[mark|save|block] {day} in the calendar for {title}", "[set up|arrange|organise] {title} {day} at {time}",
         "{day} at {time} I have {title}, [add it|put it in the calendar|enter it]",
         "on [my|the|our] calendar for {day}: {title}", "[appointment|event|meeting] {day} at {time}, {title}"],
    ),
    Tool(
        "add_to_list", "Put something on a list.", {"list": one_of(LISTS), "item": TEXT}, ("list", "item"),
        {"list": LISTS, "item": ITEMS},
        ["add {item} to [the|my|our] {list} list", "put {item} on [my|the|our] {list} list",
         "{item} [goes|belongs|should go] on the {list} list", "[write|put down|enter] {item} on the {list} list",
         "I [need|want|would like] {item} on the {list} list", "[the |my |]{list} list: {item}",
         "include {item} in [the|my|our] {list} list", "the {list} list [needs|lacks|should include] {item}",
         "[note|enter|put] {item} on the {list} list", "append {item} to [my|the|our] {list} list",
         "my {list} list should [have|contain|get] {item}", "[place|set|write] {item} on the {list} list",
         "[can|could|would] you add {item} to the {list} list", "on the {list} list, [put|write|add] {item}",
         "{item} [for|on|to] the {list} list", "{item} is [missing on|missing from|not on] the {list} list",
         "[also|and|then] {item} on the {list} list", "[extend|update|complete] the {list} list with {item}",
         "[new|another|one more] entry for the {list} list: {item}", "for [the|my|our] {list} list, {item}"],
    ),
    Tool(
        "play_music", "Play music.", {"query": TEXT, "volume": WHOLE}, ("query",),
        {"query": MUSIC, "volume": range(1, 101)},
        ["play [|me |us ]{query}", "put on [|some |a little ]{query}", "I [want|would like|wish] to hear {query}",
         "play [some |a bit of |]{query} at volume {volume}", "start [playing |with |]{query}",
         "let [me listen to|me hear|us hear] {query}", "play {query}[, | at |, at ]volume {volume}",
         "turn on [|some |the ]{query}", "some {query} would be [nice|good|great]",
         "[music|play music|some music]: {query}", "let us [have|hear|play] {query} at volume {volume}",
         "[stream|play] {query}[| now| for me]", "[put|switch|change] the music to {query}",
         "I am in the mood for [some |a little |]{query}", "{query} [at volume|with volume|on volume] {volume}",
         "[listen to|queue|start] {query}", "[can|could|would] you play {query}",
         "play music, [some |a little |]{query}", "volume {volume} and [play |put on |]{query}",
         "it is time for [some |a little |]{query}"],
    ),
    Tool(
        "convert_units", "Convert a quantity.",
        {"value": {"type": "number"}, "from": one_of(ALL_UNITS), "to": one_of(ALL_UNITS)},
        ("value", "from", "to"), {"value": range(2, 500)},
        ["convert {value} {from} [to|into|in] {to}", "how many {to} are [|in |there in ]{value} {from}",
         "what [is|are|would be] {value} {from} in {to}", "{value} {from} [in|as|to] {to}",
         "[turn|make|change] {value} {from} into {to}", "[express|write|show] {value} {from} in {to}",
         "[calculate|compute|work out] {value} {from} [as|in] {to}",
         "I have {value} {from}, how many {to} is [that|it|this]", "[give|tell|show] me {value} {from} in {to}",
         "change {value} {from} [to|into|in] {to}", "{value} {from} [equals|is|makes] how many {to}",
         "how much [is|are|would be] {value} {from} in {to}",
         "if I have {value} {from}, what is [that|it|this] in {to}",
         "[transform|recalculate|bring] {value} {from} [to|into] {to}",
         "how many {to} do {value} {from} [make|equal|give]", "in {to}, how [much|many] [is|are] {value} {from}",
         "[conversion|a conversion|the conversion] of {value} {from} to {to}",
         "I [need|want|would like] {value} {from} as {to}"],
    ),
    Tool(
        "translate", "Translate a text.", {"text": TEXT, "language": TEXT}, ("text", "language"),
        {"text": SENTENCES, "language": LANGUAGES},
        ['translate "{text}" [to|into|in] {language}', 'how [do you|do I|would you] say "{text}" in {language}',
         '[say|write|put] "{text}" in {language}', 'what [is|would be|are the words for] "{text}" in {language}',
         '[put|turn|change] "{text}" into {language}', '[translate|put|say] [into|in|to] {language}: "{text}"',
         'I [need|want|would like] "{text}" in {language}', '[give me|tell me|what is] the {language} for "{text}"',
         'how would [one|they|people] say "{text}" in {language}', '[in|into|to] {language}: "{text}"',
         '[render|express|phrase] "{text}" in {language}', 'what does "{text}" [mean|sound like|become] in {language}',
         'the {language} [words|phrase|sentence] for "{text}"',
         '[can|could|would] you translate "{text}" into {language}', '"{text}", translated [to|into|in] {language}',
         '[tell|show|teach] me "{text}" in {language}', 'what do [they|people|you] say in {language} for "{text}"',
         'how is "{text}" [said|written|put] in {language}'],
    ),
]  # fmt: skip
TOOLS = [tool.schema() for tool in APPLICATION]
NAMES_OF_TOOLS = [tool.name for tool in APPLICATION]


def variants(phrase: Phrase, part: Part) -> list[tuple[str, dict[str, Any]]]:
    """The wordings of a phrase that belong to this part, each with the arguments it implies."""
    text, implied = phrase if isinstance(phrase, tuple) else (phrase, {})
    pieces = [piece.split("|") for piece in re.split(r"[\[\]]", text)]  # every second piece was in brackets
    ways = ["".join(way) for way in itertools.product(*pieces)]
    random.Random(text).shuffle(ways)
    tested = ways[2::3]
    return [(way, implied) for way in ways if (way in tested) == (part == "test")]


def ways_of(tool: Tool, part: Part) -> list[list[tuple[str, dict[str, Any]]]]:
    """Wordings by phrase. Those of the test set are not in training, but all of their words are."""
    trained = {way for phrase in tool.phrases for way, _ in variants(phrase, "train")}
    words = {word for way in trained for word in way.split()}

    def is_fair(way: str) -> bool:
        return way not in trained and set(way.split()) <= words

    found = [variants(phrase, part) for phrase in tool.phrases]
    if part == "test":
        found = [[(way, implied) for way, implied in ways if is_fair(way)] for ways in found]
    return [ways for ways in found if ways]


def part_of(pool: Pool, part: Part) -> list[Any]:
    """Every fourth value belongs to the test set, starting with the fourth."""
    return [one for number, one in enumerate(pool) if (number % 4 == 3) == (part == "test")]


WAYS: dict[tuple[str, Part], list[list[tuple[str, dict[str, Any]]]]] = {
    (tool.name, part): ways_of(tool, part) for tool in APPLICATION for part in get_args(Part)
}


def routine_tasks(part: Part, count: int, seed: int, vocabulary: Sequence[str] = WORDS) -> list[Task]:
    """`count` different requests, the same number for each tool. Training values are generated from `vocabulary`."""
    dice = random.Random(f"routine {part} {seed}")
    tested = {word for tool in APPLICATION for name in FREE & set(tool.pools) for word in _test_words(tool, name)}
    vocabulary = [word for word in vocabulary if word.lower() not in tested]
    tasks: list[Task] = []
    seen: set[str] = set()
    for attempt in range(count * 100):
        if len(tasks) == count:
            break
        tool = APPLICATION[(len(tasks) + attempt // (count * 50)) % len(APPLICATION)]
        text, arguments = _request(tool, part, dice, vocabulary)
        if text.lower() in seen:
            continue
        seen.add(text.lower())
        expected = Expected(tool.name, {name: [value] for name, value in arguments.items()})
        name = f"routine-{part}-{seed}-{len(tasks)}"
        tasks.append(Task(name, [{"role": "user", "content": text}], TOOLS, [expected], {"set": "routine"}))
    if len(tasks) < count:
        raise ValueError(f"there are only about {len(tasks)} different requests")
    return tasks


def _request(tool: Tool, part: Part, dice: random.Random, vocabulary: Sequence[str]) -> tuple[str, dict[str, Any]]:
    phrase, implied = dice.choice(dice.choice(WAYS[tool.name, part]))
    said = {name: _value(tool, name, part, dice, vocabulary) for name in _slots(phrase) if name in tool.pools}
    if tool.name == "convert_units":
        said["from"], said["to"] = dice.sample(dice.choice(list(UNITS.values())), 2)
    text = phrase.format(**said)
    if dice.random() < 0.4:
        text = f"{dice.choice(part_of(OPENINGS, part))}, {text}"
    if dice.random() < 0.4:
        text += dice.choice(part_of(CLOSINGS, part))
    text = text[0].upper() + text[1:] if dice.random() < 0.7 else text
    arguments = {name: said.get(name, implied.get(name)) for name in tool.arguments}
    return text + dice.choice(["", ".", "?", ""]), {name: one for name, one in arguments.items() if one is not None}


def _value(tool: Tool, name: str, part: Part, dice: random.Random, vocabulary: Sequence[str]) -> Any:
    if part == "train" and name in FREE and dice.random() < MADE_UP_SHARE:
        said = " ".join(_made_up_words(name, dice, vocabulary))
        return said.capitalize() if dice.random() < 0.2 else said
    return dice.choice(_values(tool, name, part))


def _made_up_words(name: str, dice: random.Random, vocabulary: Sequence[str]) -> list[str]:
    said = [dice.choice(WHOSE)] if dice.random() < WHOSE_SHARE.get(name, 0.0) else []
    for number in range(dice.choice((1, 1, 2, 2, 3, 4))):
        if number and dice.random() < SMALL_SHARE.get(name, 0.0):
            said.append(dice.choice(SMALL))
        said.append(_made_up_word(dice, vocabulary))
    return said


def _made_up_word(dice: random.Random, vocabulary: Sequence[str]) -> str:
    if dice.random() < SPELT_SHARE:
        return "".join(dice.choices(SYLLABLES, k=dice.choice((2, 3))))
    return dice.choice(vocabulary)


def _test_words(tool: Tool, name: str) -> set[str]:
    """Words that occur in values of the test set and in no value of training."""
    known = {word.lower() for value in part_of(tool.pools[name], "train") for word in str(value).split()}
    return {word.lower() for value in part_of(tool.pools[name], "test") for word in str(value).split()} - known


def _slots(phrase: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(phrase) if name]


def _values(tool: Tool, name: str, part: Part) -> list[Any]:
    pool = tool.pools[name]
    return list(pool) if "enum" in tool.arguments[name] else part_of(pool, part)
