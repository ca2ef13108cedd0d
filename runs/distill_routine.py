"""The routine set: one application with twelve tools, its requests made by a seeded generator.

Of phrasings, opening words and values every fourth is kept for the test set, which therefore asks in words, and for
things, that training never showed. Closed lists (rooms, days, units) are part of the tools and shared.

Half of the free values in training are made up. A student that sees thirty cities learns thirty cities: trained on the
pools alone, ten layers got 29 % of the test requests right, writing the nearest city they knew. It must learn to copy.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headway.bench.client import WORDS
from headway.evals.tool_calls import Expected, Task

Part = Literal["train", "test"]
Pool = Sequence[Any]


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
MADE_UP_SHARE = 0.5
SYLLABLES = words("""
ba, ren, ko, lin, mar, tes, vo, dan, pir, sel, gu, har, ni, lo, cas, tre, wen, fa, bri, mon, del, ish, ur, zan, pel,
qui, ras, tok, em, yor, cha, ver, los, kin, ath, pru, sto, jel, ov, mi
""")
TIMES = [f"{hour}:{minute:02}" for hour in range(6, 23) for minute in range(0, 60, 5)]
OPENINGS = words("Hey, Okay, Please, Right, Hello, Quickly, Well, Good morning")
CLOSINGS = [", please", ", thanks", ", thank you", ", if you can", " please", ", many thanks", ", will you", ", okay"]


@dataclass(frozen=True)
class Tool:
    """`phrases` have arguments in braces; one with a tuple also says what it implies."""

    name: str
    description: str
    arguments: dict[str, dict[str, Any]]  # JSON schema of each
    required: tuple[str, ...]
    pools: dict[str, Pool]
    phrases: Sequence[str | tuple[str, dict[str, Any]]]

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
        ["set a timer for {minutes} minutes", "start a {minutes} minute timer", "count down {minutes} minutes",
         "give me {minutes} minutes on the clock", "timer, {minutes} minutes, for {label}",
         "set a {minutes} minute timer called {label}", "let me know when {minutes} minutes are over",
         "begin a countdown of {minutes} minutes", "wake me in {minutes} minutes",
         "I need a {minutes} minute timer named {label}", "start {label} timer with {minutes} minutes",
         "run a timer of {minutes} minutes"],
    ),
    Tool(
        "add_reminder", "Remind the user of something.", {"text": TEXT, "time": TEXT}, ("text", "time"),
        {"text": CHORES, "time": TIMES},
        ["remind me to {text} at {time}", "at {time} remind me to {text}", "set a reminder for {time}: {text}",
         "do not let me forget to {text} at {time}", "I have to {text} at {time}, remind me",
         "reminder at {time} to {text}", "make sure I {text} at {time}", "tell me at {time} to {text}",
         "I must {text}, remind me at {time}", "create a reminder to {text} for {time}",
         "{time} reminder: {text}", "nudge me at {time} to {text}"],
    ),
    Tool(
        "set_light", "Switch or dim a light.", {"room": one_of(ROOMS), "state": one_of(SWITCH), "percent": WHOLE},
        ("room", "state"), {"room": ROOMS, "percent": range(5, 101)},
        [("turn on the light in the {room}", {"state": "on"}), ("turn off the {room} light", {"state": "off"}),
         ("switch the {room} light on", {"state": "on"}), ("lights out in the {room}", {"state": "off"}),
         ("set the {room} light to {percent} percent", {"state": "on"}),
         ("make it dark in the {room}", {"state": "off"}),
         ("it is too dark in the {room}", {"state": "on"}), ("switch off the lamp in the {room}", {"state": "off"}),
         ("{room} light on at {percent} percent", {"state": "on"}),
         ("nobody is in the {room}, light off", {"state": "off"}),
         ("light up the {room}", {"state": "on"}), ("dim the {room} to {percent} percent", {"state": "on"})],
    ),
    Tool(
        "send_message", "Send a text message.", {"to": TEXT, "text": TEXT}, ("to", "text"),
        {"to": NAMES, "text": [f"{thing} {state}" for thing in THINGS for state in STATES]},
        ["send {to} a message saying {text}", "text {to} that {text}", "tell {to} {text}", "message {to}: {text}",
         "write to {to} that {text}", "let {to} know {text}", "send a text to {to}: {text}", "inform {to} that {text}",
         "I want {to} to know that {text}", "message to {to}, {text}", "drop {to} a line: {text}",
         "write {to}: {text}"],
    ),
    Tool(
        "call_contact", "Start a phone call.", {"name": TEXT}, ("name",), {"name": NAMES},
        ["call {name}", "phone {name}", "ring {name}", "give {name} a call", "I need to speak to {name}",
         "dial {name}", "get {name} on the phone", "start a call with {name}", "connect me to {name}",
         "I want to talk with {name}", "make a phone call to {name}", "place a call to {name}"],
    ),
    Tool(
        "add_note", "Write a note.", {"text": TEXT, "folder": TEXT}, ("text",),
        {"text": [f"{thing} {state}" for thing in THINGS for state in STATES], "folder": FOLDERS},
        ["note that {text}", "write down that {text}", "make a note: {text}", "take a note: {text}",
         "add to my {folder} notes: {text}", "note in {folder}: {text}", "jot down {text}", "new note, {text}",
         "save a note in {folder} saying {text}", "keep in mind that {text}", "put this in my notes: {text}",
         "record that {text}"],
    ),
    Tool(
        "get_weather", "Weather of a place.", {"city": TEXT, "day": one_of(DAYS)}, ("city",),
        {"city": CITIES, "day": DAYS},
        ["what is the weather in {city}", "how is the weather in {city} {day}", "weather for {city}",
         "will it rain in {city} {day}", "do I need an umbrella in {city}", "is it cold in {city} {day}",
         "give me the forecast for {city} {day}", "tell me the weather in {city}", "is it sunny in {city}",
         "what will it be like in {city} {day}", "how warm is it in {city}", "forecast {city} {day}"],
    ),
    Tool(
        "add_event", "Add to the calendar.", {"title": TEXT, "day": one_of(DAYS), "time": TEXT}, ("title", "day"),
        {"title": EVENTS, "day": DAYS, "time": TIMES},
        ["add {title} to my calendar {day} at {time}", "schedule {title} for {day} at {time}",
         "put {title} on {day} in the calendar", "I have a {title} {day} at {time}", "block {day} for {title}",
         "plan {title} {day} at {time}", "new event: {title}, {day}, {time}", "calendar: {title} {day}",
         "book {title} {day} at {time}", "enter {title} in my calendar for {day} at {time}",
         "there is a {title} {day} at {time}", "make an appointment for {title} {day} at {time}"],
    ),
    Tool(
        "add_to_list", "Put something on a list.", {"list": one_of(LISTS), "item": TEXT}, ("list", "item"),
        {"list": LISTS, "item": ITEMS},
        ["add {item} to the {list} list", "put {item} on my {list} list", "{item} goes on the {list} list",
         "write {item} on the {list} list", "I need {item} on the {list} list", "{list} list: {item}",
         "include {item} in the {list} list", "the {list} list needs {item}", "note {item} on the {list} list",
         "append {item} to my {list} list", "my {list} list should have {item}", "place {item} on the {list} list"],
    ),
    Tool(
        "play_music", "Play music.", {"query": TEXT, "volume": WHOLE}, ("query",),
        {"query": MUSIC, "volume": range(1, 101)},
        ["play {query}", "put on {query}", "I want to hear {query}", "play some {query} at volume {volume}",
         "start {query}", "let me listen to {query}", "play {query}, volume {volume}", "turn on {query}",
         "some {query} would be nice", "music: {query}", "let us have {query} at volume {volume}", "stream {query}"],
    ),
    Tool(
        "convert_units", "Convert a quantity.",
        {"value": {"type": "number"}, "from": one_of(ALL_UNITS), "to": one_of(ALL_UNITS)},
        ("value", "from", "to"), {"value": range(2, 500)},
        ["convert {value} {from} to {to}", "how many {to} are {value} {from}", "what is {value} {from} in {to}",
         "{value} {from} in {to}", "turn {value} {from} into {to}", "express {value} {from} in {to}",
         "calculate {value} {from} as {to}", "I have {value} {from}, how many {to} is that",
         "give me {value} {from} in {to}", "change {value} {from} to {to}", "{value} {from} equals how many {to}",
         "how much is {value} {from} in {to}"],
    ),
    Tool(
        "translate", "Translate a text.", {"text": TEXT, "language": TEXT}, ("text", "language"),
        {"text": SENTENCES, "language": LANGUAGES},
        ["translate {text} to {language}", "how do you say {text} in {language}", "say {text} in {language}",
         "what is {text} in {language}", "put {text} into {language}", "{language} for {text}",
         "translate into {language}: {text}", "I need {text} in {language}", "give me the {language} for {text}",
         "how would one say {text} in {language}", "in {language}: {text}", "render {text} in {language}"],
    ),
]  # fmt: skip
TOOLS = [tool.schema() for tool in APPLICATION]
NAMES_OF_TOOLS = [tool.name for tool in APPLICATION]


def part_of(pool: Pool, part: Part) -> list[Any]:
    """Every fourth, counted from the fourth, is the test set's."""
    return [one for number, one in enumerate(pool) if (number % 4 == 3) == (part == "test")]


def routine_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """That many different requests, the tools in equal shares."""
    dice = random.Random(f"routine {part} {seed}")
    tasks: list[Task] = []
    seen: set[str] = set()
    for attempt in range(count * 100):
        if len(tasks) == count:
            break
        tool = APPLICATION[(len(tasks) + attempt // (count * 50)) % len(APPLICATION)]
        text, arguments = _request(tool, part, dice)
        if text.lower() in seen:
            continue
        seen.add(text.lower())
        expected = Expected(tool.name, {name: [value] for name, value in arguments.items()})
        name = f"routine-{part}-{seed}-{len(tasks)}"
        tasks.append(Task(name, [{"role": "user", "content": text}], TOOLS, [expected], {"set": "routine"}))
    if len(tasks) < count:
        raise ValueError(f"there are only about {len(tasks)} different requests")
    return tasks


def _request(tool: Tool, part: Part, dice: random.Random) -> tuple[str, dict[str, Any]]:
    phrase = dice.choice(part_of(tool.phrases, part))
    phrase, implied = phrase if isinstance(phrase, tuple) else (phrase, {})
    said = {name: _value(tool, name, part, dice) for name in _slots(phrase) if name in tool.pools}
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


def _value(tool: Tool, name: str, part: Part, dice: random.Random) -> Any:
    if part == "train" and name in FREE and dice.random() < MADE_UP_SHARE:
        said = " ".join(_made_up_word(dice) for _ in range(dice.choice((1, 1, 2, 3))))
        return said.capitalize() if dice.random() < 0.4 else said
    return dice.choice(_values(tool, name, part))


def _made_up_word(dice: random.Random) -> str:
    if dice.random() < 0.5:
        return dice.choice(WORDS)
    return "".join(dice.choices(SYLLABLES, k=dice.choice((2, 3))))


def _slots(phrase: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(phrase) if name]


def _values(tool: Tool, name: str, part: Part) -> list[Any]:
    pool = tool.pools[name]
    return list(pool) if "enum" in tool.arguments[name] else part_of(pool, part)
