"""Dialogues made from eight templates (the data of paper 50's CPU study): one to three turns, slots filled at random.

Dialogue i is a function of the seed and i. What the assistant says is true where it can be checked (sums, capitals,
elements, words), so that a model that knows is not surprised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from mechanome.activations.corpora import dialogue_words as w
from mechanome.activations.text_files import held
from mechanome.activations.text_items import Item, Message
from mechanome.activations.texts import Texts
from mechanome.core.errors import BadInput

Turns = Iterator[tuple[str, str]]
"""What the user says and what the assistant answers, turn by turn."""

MOST_TURNS = 3


def cooking(rng: random.Random) -> Turns:
    """A dish, how to make it, and what to do without one part."""
    dish = rng.choice(list(w.DISHES))
    parts = list(w.DISHES[dish])
    rng.shuffle(parts)
    yield (
        f"I would like to cook something {rng.choice(w.DIETS)} for {rng.randint(2, 8)} people. Any ideas?",
        f"How about {dish}? You need {', '.join(parts[:3])} and {parts[3]}.",
    )
    minutes = 5 * rng.randint(3, 14)
    yield (
        f"How do I make {dish}?",
        f"{rng.choice(w.STEPS)} the {parts[0].removeprefix('an ').removeprefix('a ')} first. Then add {parts[1]} and "
        f"{parts[2]}, and {rng.choice(w.HEATS)} for about {minutes} minutes. Stir in {parts[3]} at the end.",
    )
    yield (
        f"I have no {parts[2].removeprefix('an ').removeprefix('a ')}. What now?",
        f"You can leave it out. Use a little more {parts[0].removeprefix('an ').removeprefix('a ')} instead.",
    )


def travel(rng: random.Random) -> Turns:
    """What to see in a city, for whom, and whether the money is enough."""
    city = rng.choice(list(w.CITIES))
    first, second, food = w.CITIES[city]
    days = rng.randint(2, 7)
    yield (
        f"I will spend {days} days in {city} in {rng.choice(w.MONTHS)}. What should I see?",
        f"Start with {first}, and keep an afternoon for {second}. In the evening, try the {food}.",
    )
    interest = rng.choice(w.INTERESTS)
    yield (
        f"I am mostly interested in {interest}. Does that change your plan?",
        f"Then stay longer at {second}: it is the best place for {interest} in {city}. "
        f"Leave one of your {days} days open.",
    )
    price = 10 * rng.randint(4, 20)
    yield (
        f"Is {price} euros a night enough for a room?",
        f"{'Yes, that buys a comfortable room' if price >= 90 else 'That is enough for a simple room'} in {city}. "
        "Book early to have a choice.",
    )


def notes(rng: random.Random) -> Turns:
    """A list, a change to it, and reminders for a day."""
    things, tasks = rng.sample(w.THINGS, 4), rng.sample(w.TASKS, 3)
    day = rng.choice(w.DAYS)
    yield (
        f"Make a shopping list: {', '.join(things[:3])}.",
        "Here is your list:\n" + "\n".join(f"- {thing}" for thing in things[:3]),
    )
    yield (
        f"Please add {things[3]}, and remove {things[0]}.",
        "Done:\n" + "\n".join(f"- {thing}" for thing in things[1:]),
    )
    yield (
        f"Also remind me to {tasks[0]}, {tasks[1]} and {tasks[2]} on {day}.",
        f"Noted for {day}:\n" + "\n".join(f"{k}. {task.capitalize()}" for k, task in enumerate(tasks, 1)),
    )


def sums(rng: random.Random) -> Turns:
    """Two sums that follow each other, and a price."""
    a, b, c = rng.randint(10, 99), rng.randint(10, 99), rng.randint(2, 9)
    yield f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."
    yield f"And if I take away {c} from that?", f"{a + b} minus {c} is {a + b - c}."
    name, price = rng.choice(w.NAMES), rng.randint(2, 12)
    yield (
        f"{name} buys {c} books for {price} dollars each. How much does {name} pay?",
        f"{name} pays {c} times {price}, which is {c * price} dollars.",
    )


def summaries(rng: random.Random) -> Turns:
    """A notice in one sentence, who was behind it, and a title."""
    event = rng.choice(list(w.EVENTS))
    detail, praise = w.EVENTS[event]
    name, place, day, guests = rng.choice(w.NAMES), rng.choice(w.PLACES), rng.choice(w.DAYS), 10 * rng.randint(3, 60)
    yield (
        f"Summarize this in one sentence: On {day} there was {event} at the {place}. {detail}. {name}, who organized "
        f"it, counted {guests} guests, and many of them praised {praise}.",
        f"About {guests} people came to {event} at the {place} on {day} and liked {praise}.",
    )
    yield "Who organized it?", f"{name} organized it."
    yield "Give it a title.", f"{guests} guests at {event.partition(' ')[2]} in the {place}".capitalize() + "."


def facts(rng: random.Random) -> Turns:
    """Two capitals and an element."""
    country, other = rng.sample(list(w.CAPITALS), 2)
    element = rng.choice(list(w.ELEMENTS))
    symbol, number = w.ELEMENTS[element]
    yield f"What is the capital of {country}?", f"The capital of {country} is {w.CAPITALS[country]}."
    yield f"And the capital of {other}?", f"It is {w.CAPITALS[other]}."
    yield (
        f"What is the symbol of {element}?",
        f"The chemical symbol of {element} is {symbol}, and its atomic number is {number}.",
    )


def advice(rng: random.Random) -> Turns:
    """A worry, what helps, and what else helps."""
    problem = rng.choice(list(w.PROBLEMS))
    first, second, third = rng.sample(w.PROBLEMS[problem], 3)
    weeks = rng.randint(2, 8)
    yield (
        f"{problem[0].upper()}{problem[1:]}. What can I do?",
        f"I am sorry to hear that it is on your mind. First, {first}. It also helps to {second}.",
    )
    yield (
        "I tried that already. Anything else?",
        f"Then {third}, and give it {weeks} weeks before you judge the result.",
    )
    yield (
        f"My friend {rng.choice(w.NAMES)} says that is nonsense.",
        "Advice does not fit everyone. Try it for a while, and keep what works for you.",
    )


def translation(rng: random.Random) -> Turns:
    """Two words into another language, and one back."""
    language = rng.choice(list(w.TRANSLATIONS))
    words = w.TRANSLATIONS[language]
    first, second, third = rng.sample(list(words), 3)
    yield f'How do you say "{first}" in {language}?', f'"{first.capitalize()}" is "{words[first]}" in {language}.'
    yield f'And "{second}"?', f'That is "{words[second]}".'
    yield (
        f'What does "{words[third]}" mean in English?',
        f'The {language} word "{words[third]}" means "{third}".',
    )


TEMPLATES: dict[str, Callable[[random.Random], Turns]] = {
    template.__name__: template for template in (cooking, travel, notes, sums, summaries, facts, advice, translation)
}
"""The eight kinds of dialogue, by name."""


def dialogue(seed: int, index: int) -> list[Message]:
    """One dialogue: its template, its number of turns and its slots are drawn from the seed and the index."""
    rng = random.Random(f"{seed}/{index}")
    template = TEMPLATES[rng.choice(sorted(TEMPLATES))]
    turns = rng.randint(1, MOST_TURNS)
    messages: list[Message] = []
    for _, (asked, answered) in zip(range(turns), template(rng)):
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return messages


def dialogues(n: int = 4000, *, seed: int = 0) -> Texts:
    """So many dialogues; other seeds give others, for held-out data.

    Raises:
        BadInput: fewer than one, or a seed below 0.
    """
    if n < 1 or seed < 0:
        raise BadInput("dialogues", f"{n} of seed {seed}", "ask for at least one, of a seed from 0 on")
    made: list[Item] = [dialogue(seed, index) for index in range(n)]
    return Texts.of(held(made, None), f"dialogues(n={n}, seed={seed})")
