"""The prompts the demo's drafter is trained and judged on, all written for this project.

``training_prompts`` fills templates from slot lists. ``HELD_OUT`` and ``DEMO`` come from the package:
the evaluation set, whose values appear in no slot list and whose last third consists of kinds that
have no training template at all, and the prompts the demo shows. ``assert_held_out`` keeps them apart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from dspark_ext.demo.prompts import DEMO, HELD_OUT

SLOTS: dict[str, str] = {  # values separated by semicolons
    "thing": """photosynthesis; gravity; volcanoes; rainbows; magnets; earthquakes; the water cycle; batteries;
        black holes; the moon; tides; lightning; glaciers; vaccines; DNA; atoms; inflation; the internet; recycling;
        solar panels; wind turbines; steam engines; compost; yeast; sound waves; the human heart; the immune system;
        digestion; memory; sleep; dreams; fossils; dinosaurs; coral reefs; rainforests; deserts; the ozone layer;
        plate tectonics; evolution; electricity; friction; bridges; airplanes; submarines; telescopes; microscopes;
        cameras; compilers; search engines; encryption; neural networks; databases; operating systems; taxes;
        elections; the stock market; supply and demand; insurance; credit cards; democracy; the seasons; clouds;
        tornadoes; hurricanes; snowflakes; bees; ants; whales; bats; owls; spiders; mushrooms; soap; glass; paper;
        chocolate; coffee; bread; cheese; salt; plastic; steel; clocks; maps; calendars; the alphabet""",
    "audience": """a child; a beginner; a high school student; a curious adult; my grandmother; a new employee;
        someone in a hurry; a ten year old; a college student; a tourist""",
    "place": """France; Japan; Brazil; Egypt; Canada; India; Kenya; Italy; Norway; Mexico; Australia; Greece; Peru;
        China; Spain; Turkey; Iceland; Morocco; Chile; Poland; Vietnam; Ireland; Cuba; Nigeria; Sweden; Thailand;
        Argentina; Portugal; South Korea; New Zealand; Austria; Finland; Ghana; Colombia; Hungary""",
    "city": """Paris; Tokyo; London; Rome; New York; Berlin; Madrid; Cairo; Sydney; Istanbul; Vienna; Dublin;
        Lisbon; Athens; Chicago; Boston; Toronto; Amsterdam; Prague; Venice""",
    "hero": """a fox; a baker; a lonely robot; a young wizard; a pirate captain; a cat; a lighthouse keeper;
        a clumsy dragon; two sisters; an old fisherman; a mouse; a painter; a shy ghost; a brave knight; a farmer;
        a retired detective; a snowman; a little girl; a violinist; a gardener; a talking tree; a space explorer;
        a rabbit; a blacksmith; a turtle; a librarian; twin brothers; a king; a postman; a puppy; a sailor;
        a teacher; an owl; a chef; a bear; a princess; a spider; a student; a taxi driver; an elephant""",
    "quest": """who finds a hidden door; who wants to learn to sing; who is afraid of the dark; who gets lost in
        the forest; who makes an unlikely friend; who must save the village; who discovers a magic book; who loses
        something precious; who travels to the sea; who learns to share; who builds a boat; who meets a stranger;
        who opens a mysterious letter; who wins a contest; who cannot sleep; who finds a treasure map; who moves to
        a big city; who learns the value of honesty; who plants a strange seed; who keeps a secret""",
    "operation": """checks if a number is prime; computes the factorial of a number; finds the largest number in a
        list; counts the vowels in a string; sorts a list of numbers; removes duplicates from a list; computes the
        Fibonacci sequence; checks if a string is a palindrome; sums the digits of a number; merges two sorted lists;
        finds the average of a list; converts Celsius to Fahrenheit; counts the words in a sentence; reverses a
        string; finds the greatest common divisor of two numbers; checks if a year is a leap year; flattens a nested
        list; finds the second largest number in a list; reads a file and prints its lines; computes the area of a
        circle; checks if two strings are anagrams; converts a string to title case; finds the intersection of two
        lists; generates a random password; counts how often each character occurs; multiplies two matrices; performs
        a binary search; implements bubble sort; computes the power of a number; finds the longest word in a sentence;
        rotates a list by k places; validates an email address; converts a decimal number to binary; swaps two
        variables; filters the even numbers from a list; squares every number in a list; finds the index of an item;
        joins a list of strings with commas; computes compound interest; prints a multiplication table; parses a CSV
        line; counts the lines in a file; transposes a matrix; splits a list into chunks; checks if a list is sorted;
        calculates the distance between two points; finds all the divisors of a number; rolls two dice; capitalizes
        every word; replaces spaces with underscores; finds the most common element in a list; zips two lists into a
        dictionary; inverts a dictionary; sorts a dictionary by value; prints the numbers from 1 to 100""",
    "language": "Python; Python; Python; Python; JavaScript; Java; C",
    "collection": """stack; queue; bank account; shopping cart; student; rectangle; library; car; timer; counter;
        playlist; to-do list; linked list; binary tree; matrix; deck of cards; temperature; employee; point; inventory""",
    "list_topic": """ways to save money; healthy breakfast ideas; reasons to learn a language; tips for a job
        interview; hobbies to try at home; books everyone should read; ways to reduce stress; things to pack for a
        trip; ideas for a birthday party; exercises for beginners; ways to help the environment; questions to ask a
        new friend; tips for better sleep; benefits of reading; uses for vinegar; famous inventors; common fruits;
        programming languages; musical instruments; types of clouds; kinds of pasta; team building activities;
        names for a cat; names for a bakery; ways to make new friends; signs of a good leader; study tips; gifts for
        a teacher; outdoor games for children; vegetables that are easy to grow; ways to stay motivated; tips for
        public speaking; desserts without sugar; small business ideas; things to do on a rainy day; rules for a
        classroom; goals for the new year; apps that would be useful; facts about penguins; facts about the sun""",
    "item": """apples; books; pencils; cookies; marbles; oranges; stickers; eggs; tickets; flowers; coins; toys; cards;
        bottles; candies; chairs; boxes; stamps; balloons; bananas""",
    "name": """Anna; Tom; Maria; Ben; Lucy; Omar; Priya; Jack; Sofia; David; Emma; Liam; Nina; Carlos; Grace; Leo; Mia;
        Noah; Sara; Victor; Zoe; Peter; Julia; Kevin""",
    "sentence": """I has went to the store yesterday.; The meeting was very long and it was boring and nobody liked it.;
        He don't know nothing about it.; We need to talk about the project soon.; The food at the restaurant was bad.;
        She is a good teacher and her students like her.; Your order is late because of the weather.;
        I want a refund.; The book was about a man who goes to the sea.; Their going to the park with there dog.;
        It is raining today so the game is cancelled.; I can't come to work because I am sick.;
        The house is big and old and it has many rooms.; Me and him was late for school.;
        This product is the best thing I have ever bought.; The computer is slow and it makes a loud noise.;
        You did a bad job on this report.; The trip was fun but we were tired.; I am writing to ask about the job.;
        The city has many parks and people like to walk in them.; My friend give me a advice.;
        The train leaved the station before we arrive.; Send me the files now.; The movie was good.;
        Dogs are loyal animals and they make good pets.; He runned very fast to catch the bus.""",
    "style": """more formal; more polite; shorter; more friendly; clearer; more exciting; grammatically correct;
        suitable for a business email; simpler; more persuasive""",
    "problem": """I can't sleep at night; I have a job interview tomorrow; my friend is angry with me; I am nervous
        about an exam; I want to save more money; I keep forgetting things; I want to start running; my room is always
        messy; I feel tired all day; I want to learn to cook; my computer is slow; I spend too much time on my phone;
        I am moving to a new city; I want to read more books; I have too much work to do; my plants keep dying;
        I want to make new friends; I am bored at work; my neighbor is too loud; I want to eat healthier;
        I have to give a speech; I want to learn the guitar; my dog barks all night; I can't focus on my homework;
        I want to wake up earlier; I am afraid of flying; I disagree with my boss; I want to change my career""",
    "purpose": """ask for a day off; thank a colleague for their help; invite a friend to dinner; apologize for being
        late; ask about the status of an order; apply for a summer job; cancel a subscription; complain about a broken
        product; request a meeting; congratulate a coworker on a promotion; remind the team about a deadline; ask a
        professor for an extension; introduce a new team member; decline an invitation; follow up after an interview;
        ask for a refund; announce an office party; recommend a restaurant; ask a neighbor to feed a cat; resign
        from a job; ask for feedback; reschedule an appointment; welcome a new customer; offer help to a friend""",
    "fact": """Who wrote Romeo and Juliet?; What is the largest planet in the solar system?; How many continents are
        there?; What is the boiling point of water?; Who painted the Mona Lisa?; What is the fastest land animal?;
        How many days are in a leap year?; What is the longest river in the world?; Who invented the telephone?;
        What is the chemical symbol for gold?; Which ocean is the largest?; What do pandas eat?; How far away is the
        sun?; What is the tallest mountain on Earth?; Who was the first person on the moon?; What language is spoken
        in Brazil?; How many bones does an adult have?; What causes thunder?; Why do leaves change color?;
        Why is the sea salty?; How do fish breathe?; What is the smallest country in the world?; When did World War
        II end?; What is the currency of Japan?; How many strings does a violin have?; What is a group of lions
        called?; What is the speed of light?; Who discovered penicillin?; What is the square root of 144?;
        What are the primary colors?; Why do we yawn?; How do birds fly?; Why is ice slippery?; How are pearls made?;
        What is the difference between weather and climate?; Why do cats purr?; How does a microwave heat food?;
        What is the hottest planet?; How do plants drink water?; Why do we have time zones?; What is a leap second?""",
    "dish": """pancakes; tomato soup; fried rice; an omelette; banana bread; spaghetti; a fruit salad; chicken curry;
        chocolate cookies; mashed potatoes; guacamole; lemonade; vegetable stew; pizza dough; apple pie; hot chocolate;
        a sandwich; roasted carrots; scrambled eggs; rice pudding""",
    "poem_topic": """autumn; the ocean; my cat; a rainy day; friendship; the night sky; home; a river; winter; spring
        flowers; the moon; a train ride; music; an old house; the wind; a garden; morning coffee; snow; hope; summer""",
    "word": """happy; brave; ancient; generous; curious; fragile; enormous; silent; clever; honest; ambitious; gentle;
        difficult; important; beautiful; rapid; patient; reluctant; abundant; grateful; obscure; vivid; humble""",
    "concept": """a variable; a loop; recursion; a function; a class; a dictionary; an algorithm; a pointer; an array;
        an API; version control; a hash table; object-oriented programming; a database index; a thread; a unit test;
        a regular expression; machine learning; cloud computing; a compiler; a stack overflow; a linked list""",
}

KINDS: dict[str, list[str]] = {
    "explain": [
        "Explain {thing} to {audience}.",
        "What is the main idea behind {thing}? Explain it to {audience}.",
        "Tell me about {thing}.",
        "How would you describe {thing} to {audience}?",
        "Explain how {thing} work in simple words.",
        "Give me a short introduction to {thing}.",
        "Why is it useful to know about {thing}?",
        "Write a paragraph about {thing}.",
    ],
    "concept": [
        "What is {concept} in programming?",
        "Explain {concept} with an example.",
        "Explain {concept} to {audience}.",
        "When should I use {concept}?",
    ],
    "code": [
        "Write a {language} function that {operation}.",
        "Write a {language} program that {operation}.",
        "Show me a short {language} function that {operation} and explain it.",
        "How do I write {language} code that {operation}?",
        "Write a Python function that {operation}, with a docstring.",
        "Give me an example of {language} code that {operation}.",
        "Write a Python class for a {collection}.",
        "Implement a {collection} in {language}.",
    ],
    "story": [
        "Write a short story about {hero} {quest}.",
        "Tell me a story about {hero} {quest}.",
        "Write the beginning of a story about {hero} {quest}.",
        "Write a bedtime story about {hero}.",
        "Once upon a time there was {hero} {quest}. Continue the story.",
        "Write a funny story about {hero} and {hero}.",
    ],
    "list": [
        "Give me five {list_topic}.",
        "List some {list_topic}.",
        "What are some {list_topic}?",
        "Make a numbered list of ten {list_topic}.",
        "Can you suggest three {list_topic}?",
    ],
    "arithmetic": [
        "{name} has {number} {item} and buys {number} more. How many {item} does {name} have now?",
        "{name} had {number} {item} and gave {small} to {name}. How many are left?",
        "A box holds {small} {item}. How many {item} are in {small} boxes?",
        "If one ticket costs {small} dollars, how much do {small} tickets cost?",
        "{name} reads {small} pages every day. How many pages does {name} read in {small} days?",
        "What is {number} plus {number}?",
        "What is {number} times {small}?",
        "{name} shares {number} {item} equally among {small} friends. How many does each friend get?",
        "A train travels {number} miles in {small} hours. What is its speed?",
    ],
    "rewrite": [
        "Rewrite this sentence so that it is {style}: {sentence}",
        "Make this {style}: {sentence}",
        "Please rewrite the following to be {style}. {sentence}",
        "Correct the grammar: {sentence}",
    ],
    "advice": [
        "What should I do if {problem}?",
        "Give me some advice: {problem}.",
        "Can you help me? {problem}.",
        "I need a plan because {problem}.",
    ],
    "email": [
        "Write an email to {purpose}.",
        "Write a short and polite email to {purpose}.",
        "Help me write a message to {purpose}.",
        "Draft a letter from {name} to {purpose}.",
    ],
    "fact": [
        "{fact}",
        "{fact} Answer in one sentence.",
        "{fact} Please explain.",
        "Quick question: {fact}",
    ],
    "travel": [
        "What should I see in {city}?",
        "Plan a two day trip to {city}.",
        "What is the capital of {place}, and what is it known for?",
        "Tell me three interesting facts about {place}.",
        "What food is popular in {place}?",
        "Write a short description of {city} for a travel guide.",
    ],
    "recipe": [
        "How do I make {dish}?",
        "Give me a simple recipe for {dish}.",
        "What ingredients do I need for {dish}?",
    ],
    "poem": [
        "Write a short poem about {poem_topic}.",
        "Write four lines of verse about {poem_topic}.",
    ],
    "word": [
        "What does the word '{word}' mean?",
        "Use the word '{word}' in three sentences.",
        "Give me synonyms for '{word}'.",
    ],
}

# How often each kind is drawn. The demo shows explanations, code and stories.
WEIGHTS = {
    "explain": 5, "concept": 2, "code": 5, "story": 4, "list": 3, "arithmetic": 2, "rewrite": 1.5, "advice": 2,
    "email": 2, "fact": 2, "travel": 2, "recipe": 1, "poem": 0.7, "word": 0.7,
}  # fmt: skip


def training_prompts(seed: int) -> Iterator[str]:
    """An endless stream of prompts, a pure function of ``seed``; repeats come only when a kind runs dry."""
    generator = random.Random(seed)
    slots = {
        name: [" ".join(value.split()) for value in text.split(";")] for name, text in SLOTS.items()
    }
    slots["number"] = [str(n) for n in range(11, 200)]
    slots["small"] = [str(n) for n in range(2, 13)]
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    forbidden = {_normalised(prompt) for prompt in held_out_prompts()}
    seen: set[str] = set()
    while True:
        kind = generator.choices(kinds, weights)[0]
        for _ in range(10):
            template = generator.choice(KINDS[kind])
            prompt = re.sub(r"\{(\w+)\}", lambda match: generator.choice(slots[match[1]]), template)
            if prompt not in seen:
                break
        if _normalised(prompt) in forbidden:
            continue
        seen.add(prompt)
        yield prompt


def held_out_prompts() -> list[str]:
    return [prompt for _, prompt in HELD_OUT] + list(DEMO.values())


def assert_held_out(prompts) -> None:
    """Fails if any evaluation or demo prompt is among ``prompts``."""
    common = {_normalised(prompt) for prompt in prompts} & {
        _normalised(prompt) for prompt in held_out_prompts()
    }
    if common:
        raise AssertionError(f"held-out prompts found in the training set: {sorted(common)}")


def _normalised(prompt: str) -> str:
    return " ".join(re.findall(r"\w+", prompt.lower()))
