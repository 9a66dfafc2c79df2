"""Prompts the demo's drafter never saw in training, all written for this project."""

DEMO: dict[str, str] = {
    "chat": "Explain why the sky is blue to a curious child.",
    "code": "Write a Python function that returns the longest common prefix of a list of strings.",
    "story": "Tell me a story about a clockmaker who repairs a broken star.",
}

# (kind, prompt); kinds marked with * have no training template.
HELD_OUT: list[tuple[str, str]] = [
    ("explain", "Explain how a refrigerator keeps food cold."),
    ("explain", "Explain comets to a visitor at a museum."),
    ("explain", "Tell me about the greenhouse effect."),
    ("concept", "What is a binary heap in programming?"),
    ("code", "Write a Python function that moves all zeros to the end of a list."),
    ("code", "Write a Python function that checks whether brackets are balanced."),
    ("code", "Write a Python class for a parking lot."),
    ("story", "Write a short story about a beekeeper who hears music under the snow."),
    ("story", "Tell me a story about a penguin who opens a tiny bookshop."),
    ("list", "Give me five reasons to ride a bicycle."),
    ("list", "List some safety rules for a chemistry lab."),
    ("arithmetic", "A baker fills 14 trays with 9 muffins each. How many muffins is that?"),
    (
        "rewrite",
        "Rewrite this sentence so that it is more formal: The boss said no and that was that.",
    ),
    ("advice", "What should I do if my bicycle was stolen?"),
    ("email", "Write an email to ask the landlord to repair the heating."),
    ("travel", "Tell me three interesting facts about Madagascar."),
    ("recipe", "How do I make onion rings?"),
    ("*compare", "Compare trains and buses for a daily commute."),
    ("*debate", "Argue for and against homework in primary schools."),
    ("*dialogue", "Write a dialogue between a doctor and a worried patient."),
    ("*review", "Write a review of a noisy hotel with a wonderful view."),
    ("*summary", "Summarize the plot of Cinderella in three sentences."),
    ("*history", "Describe what daily life was like for a Roman soldier."),
    ("*slogan", "Come up with a slogan for an umbrella company and explain your choice."),
]
