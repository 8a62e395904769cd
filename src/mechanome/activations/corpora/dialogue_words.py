"""The words that dialogues are filled with."""

from __future__ import annotations

DISHES: dict[str, tuple[str, ...]] = {
    "lentil soup": ("lentils", "carrots", "an onion", "cumin"),
    "mushroom risotto": ("rice", "mushrooms", "vegetable stock", "parmesan"),
    "tomato pasta": ("spaghetti", "tomatoes", "garlic", "basil"),
    "chicken curry": ("chicken", "coconut milk", "curry paste", "rice"),
    "vegetable chili": ("beans", "peppers", "tomatoes", "chili powder"),
    "apple pie": ("apples", "butter", "flour", "cinnamon"),
    "banana bread": ("ripe bananas", "flour", "eggs", "brown sugar"),
    "potato salad": ("potatoes", "pickles", "mustard", "spring onions"),
    "fried rice": ("cooked rice", "eggs", "peas", "soy sauce"),
    "shakshuka": ("eggs", "tomatoes", "peppers", "paprika"),
    "pancakes": ("flour", "milk", "eggs", "a little sugar"),
    "minestrone": ("beans", "pasta", "zucchini", "celery"),
    "fish tacos": ("white fish", "tortillas", "cabbage", "lime"),
    "quiche": ("eggs", "cream", "spinach", "pastry"),
    "hummus": ("chickpeas", "tahini", "lemon juice", "garlic"),
    "omelette": ("eggs", "cheese", "chives", "butter"),
}
DIETS = ("vegetarian", "quick", "cheap", "spicy", "gluten-free", "light", "hearty", "dairy-free")
STEPS = ("Chop", "Rinse and prepare", "Season", "Measure out")
HEATS = ("simmer gently", "bake at a medium heat", "fry over a high flame", "cook with the lid on")

CITIES: dict[str, tuple[str, str, str]] = {
    "Lisbon": ("the Belém Tower", "the tram to Alfama", "custard tarts"),
    "Kyoto": ("the Golden Pavilion", "the bamboo grove", "matcha sweets"),
    "Rome": ("the Colosseum", "the Vatican Museums", "carbonara"),
    "Vienna": ("the Belvedere", "the State Opera", "apple strudel"),
    "Istanbul": ("the Hagia Sophia", "the Grand Bazaar", "grilled fish"),
    "Prague": ("Charles Bridge", "the castle", "dumplings"),
    "Edinburgh": ("the castle", "Arthur's Seat", "shortbread"),
    "Barcelona": ("the Sagrada Família", "Park Güell", "tapas"),
    "Amsterdam": ("the Rijksmuseum", "the canals", "stroopwafels"),
    "Athens": ("the Acropolis", "the Plaka quarter", "souvlaki"),
    "Marrakesh": ("the Majorelle Garden", "the old market", "mint tea"),
    "Mexico City": ("the Anthropology Museum", "Xochimilco", "tamales"),
    "Montreal": ("Mount Royal", "the Old Port", "bagels"),
    "Copenhagen": ("Nyhavn", "Tivoli Gardens", "open sandwiches"),
    "Cape Town": ("Table Mountain", "the waterfront", "grilled meat"),
    "Hanoi": ("the Old Quarter", "Hoan Kiem Lake", "noodle soup"),
}
MONTHS = ("January", "March", "April", "May", "June", "August", "September", "October", "November")
INTERESTS = ("art", "food", "history", "music", "architecture", "hiking", "markets", "photography")

CAPITALS: dict[str, str] = {
    "France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Canada": "Ottawa", "Brazil": "Brasília",
    "Egypt": "Cairo", "Norway": "Oslo", "Poland": "Warsaw", "Peru": "Lima", "Portugal": "Lisbon",
    "Cuba": "Havana", "Hungary": "Budapest", "Ireland": "Dublin", "Jordan": "Amman", "Nepal": "Kathmandu",
    "Austria": "Vienna", "Chile": "Santiago", "Finland": "Helsinki", "Greece": "Athens", "Iraq": "Baghdad",
    "Italy": "Rome", "Mali": "Bamako", "Oman": "Muscat", "Senegal": "Dakar", "Spain": "Madrid",
    "Sweden": "Stockholm", "Thailand": "Bangkok", "Uruguay": "Montevideo", "Vietnam": "Hanoi", "Ghana": "Accra",
}  # fmt: skip
ELEMENTS: dict[str, tuple[str, int]] = {
    "hydrogen": ("H", 1), "helium": ("He", 2), "carbon": ("C", 6), "nitrogen": ("N", 7), "oxygen": ("O", 8),
    "neon": ("Ne", 10), "sodium": ("Na", 11), "magnesium": ("Mg", 12), "aluminum": ("Al", 13), "silicon": ("Si", 14),
    "sulfur": ("S", 16), "chlorine": ("Cl", 17), "potassium": ("K", 19), "calcium": ("Ca", 20), "iron": ("Fe", 26),
    "copper": ("Cu", 29), "zinc": ("Zn", 30), "silver": ("Ag", 47), "tin": ("Sn", 50), "gold": ("Au", 79),
}  # fmt: skip

TRANSLATIONS: dict[str, dict[str, str]] = {
    "French": {
        "house": "maison", "water": "eau", "bread": "pain", "book": "livre", "sun": "soleil", "moon": "lune",
        "friend": "ami", "tree": "arbre", "cat": "chat", "dog": "chien", "milk": "lait", "door": "porte",
        "night": "nuit", "day": "jour", "snow": "neige", "rain": "pluie", "apple": "pomme", "fish": "poisson",
        "street": "rue", "bird": "oiseau",
    },
    "Spanish": {
        "house": "casa", "water": "agua", "bread": "pan", "book": "libro", "sun": "sol", "moon": "luna",
        "friend": "amigo", "tree": "árbol", "cat": "gato", "dog": "perro", "milk": "leche", "door": "puerta",
        "night": "noche", "day": "día", "snow": "nieve", "rain": "lluvia", "apple": "manzana", "fish": "pescado",
        "street": "calle", "bird": "pájaro",
    },
    "German": {
        "house": "Haus", "water": "Wasser", "bread": "Brot", "book": "Buch", "sun": "Sonne", "moon": "Mond",
        "friend": "Freund", "tree": "Baum", "cat": "Katze", "dog": "Hund", "milk": "Milch", "door": "Tür",
        "night": "Nacht", "day": "Tag", "snow": "Schnee", "rain": "Regen", "apple": "Apfel", "fish": "Fisch",
        "street": "Straße", "bird": "Vogel",
    },
}  # fmt: skip

THINGS = (
    "milk", "bread", "apples", "coffee", "soap", "batteries", "stamps", "tea", "olive oil", "flour", "light bulbs",
    "paper", "toothpaste", "rice", "cheese", "a birthday card", "cat food", "envelopes", "tape", "candles",
)  # fmt: skip
TASKS = (
    "call the dentist", "pay the rent", "water the plants", "return the library books", "send the report",
    "book the train tickets", "clean the kitchen", "fix the bicycle", "answer Maria's letter", "renew the passport",
    "pick up the parcel", "prepare the slides", "back up the laptop", "visit grandmother", "order new shoes",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NAMES = ("Anna", "Omar", "Lena", "Tom", "Priya", "Carlos", "Mei", "Jonas", "Fatima", "David", "Elif", "Noah")
PLACES = ("library", "town hall", "school", "harbor", "museum", "hospital", "train station", "theater")
EVENTS: dict[str, tuple[str, str]] = {
    "a concert": ("The tickets sold out within an hour", "the music"),
    "a repair workshop": ("Over forty broken lamps and toasters were brought in", "the help"),
    "a book fair": ("Three local writers read from their new novels", "the readings"),
    "a blood drive": ("Nearly two hundred people came to donate", "the good cause"),
    "a chess tournament": ("The youngest player was only nine years old", "the close games"),
    "a charity run": ("The money goes to a new playground", "the sunny weather"),
    "an open day": ("Visitors could look behind doors that are usually closed", "the guided tours"),
    "a science evening": ("Children built small rockets with their parents", "the experiments"),
}
PROBLEMS: dict[str, tuple[str, str, str]] = {
    "I cannot sleep well": (
        "go to bed at the same time every day",
        "leave your phone in another room",
        "avoid coffee after noon",
    ),
    "I keep putting off my work": (
        "start with ten minutes only",
        "write down the very next step",
        "work where nothing distracts you",
    ),
    "I am nervous about a job interview": (
        "practice your answers aloud",
        "read about the company",
        "prepare two questions of your own",
    ),
    "I spend too much money": (
        "write down every expense for a month",
        "put savings aside on payday",
        "wait a day before you buy",
    ),
    "I want to learn to play the guitar": (
        "practice a little every day",
        "begin with three chords",
        "play songs that you love",
    ),
    "my neighbor is too loud": (
        "talk to them kindly first",
        "agree on quiet hours",
        "ask the landlord for help if it goes on",
    ),
    "I forget people's names": (
        "repeat the name when you hear it",
        "link it to a picture",
        "write it down afterwards",
    ),
    "I would like to run five kilometers": (
        "alternate running and walking",
        "run three times a week",
        "rest for a day in between",
    ),
    "my plants keep dying": (
        "check the soil before watering",
        "move them closer to the window",
        "use pots with holes",
    ),
    "I have an argument with my sister": (
        "listen before you answer",
        "say how you feel without blame",
        "take a break if it gets heated",
    ),
}
