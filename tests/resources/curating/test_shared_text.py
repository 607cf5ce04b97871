"""Text that all rows of a prompt share is no evidence: real shapes of prompts against copies, and against evaluation items."""

import json
import random

import pyarrow as pa
import pytest

from resources.curating.cleaning import MACROS
from resources.curating.curation import Decontamination, NearDuplicates
from resources.curating.decontamination import EVAL_ITEMS, find_items
from resources.curating.duplicates.near_duplicates import group_turns
from resources.lake.sql_files import run, workbench

WORDS = [
    f"{one}{two}"
    for one in ["ba", "ko", "li", "mu", "ne", "po", "ra", "su", "ti", "ve"]
    for two in ["dan", "fel", "gor", "hin", "jus", "kem", "lor", "mit", "nop", "rus"]
]


def sentence(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def kept(turns):
    """The rows that stay, of (question, answer)."""
    columns = [pa.array([turn[part] for turn in turns], pa.large_string()) for part in (0, 1)]
    best = group_turns(*columns, NearDuplicates()).best.tolist()
    return [row for row, first in enumerate(best) if row == first]


RULES = (
    "Classify the customer's sentence for the help desk of a bicycle shop. Use exactly one of three labels. Write delivery if a "
    "parcel is late, lost, damaged or left at a wrong place. Write billing if the sentence speaks of money, an invoice, a "
    "refund or a price. Write other in all other cases, also for praise, and never explain the label."
)
STOCK = (
    "I am sorry, but the passages that I was given do not say anything about this question, so please ask one of my colleagues, "
    "who will gladly help you on any working day between nine and five, or leave your number and wait for a call."
)


def shape_of(rng, name):
    """An example of a shape's endpoint: question and answer."""
    match name:
        case "label at the end":
            return f"{RULES}\nSentence: {sentence(rng, 4)}\nLabel:", rng.choice(["billing", "delivery", "other"])
        case "text first":
            return f"{sentence(rng, 25)}\n\n{RULES}", rng.choice(["billing", "delivery", "other"])
        case "one label only":
            return f"{RULES}\nSentence: {sentence(rng, 6)}", "other"
        case "one word":
            return f"{RULES}\nWord: {rng.choice(WORDS)}{rng.randrange(1000)}", rng.choice(["yes", "no"])
        case "extraction":
            value, other = sentence(rng, 2), rng.randrange(10_000)
            return (
                f"{RULES} Text: order {other} of {value}, please. Return JSON.",
                json.dumps({"customer": value, "order": other, "status": "open", "currency": "none"}),
            )
        case "few-shot":
            shots = "\n".join(f"Q: {sentence(random.Random(n), 12)} A: {n}" for n in range(8))
            return f"{shots}\nQ: {sentence(rng, 9)} A:", str(rng.randrange(50))
        case "passages":
            passages = "\n".join(sentence(random.Random(rng.randrange(6)), 80) for _ in range(2))
            return f"{RULES}\n{passages}\nQuestion: {sentence(rng, 8)}", sentence(rng, 15)
        case "stock answers":
            return f"{RULES}\nQuestion: {sentence(rng, 7)}", STOCK if rng.random() < 0.5 else sentence(rng, 15)


SHAPES = ["label at the end", "text first", "one label only", "one word", "extraction", "few-shot", "passages", "stock answers"]


@pytest.mark.parametrize("name", SHAPES)
def test_examples_of_one_shape_stay_and_their_copies_do_not(name):
    rng = random.Random(name)
    rows = list(dict.fromkeys(shape_of(rng, name) for _ in range(120)))
    respaced = [(question.replace(" ", "  ").replace(".", " !"), answer) for question, answer in rows[:40]]
    assert kept(rows) == list(range(len(rows)))
    assert kept(rows + respaced) == list(range(len(rows)))
    assert sorted(kept(rows[::-1])) == list(range(len(rows)))


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_few_rows(name):
    """With two rows nothing but the rows themselves tells what is a template."""
    for seed in range(10):
        rng = random.Random(f"{name}{seed}")
        one, other, *more = dict(shape_of(rng, name) for _ in range(20)).items()
        if name == "one word":
            other = next(row for row in [other, *more] if row[1] != one[1])
        if name == "stock answers" and one[1] == other[1]:
            continue  # forty equal words of answers against seven others of questions: a third row is needed
        assert kept([one, other]) == [0, 1]


def test_edited_copies_inside_a_shape_are_found():
    rng = random.Random(5)
    long = [(f"{RULES}\nMail: {sentence(rng, 60)}", rng.choice(["billing", "delivery"])) for _ in range(100)]
    told = [(f"{RULES}\nMail: {sentence(rng, 30)}", sentence(rng, 80)) for _ in range(100)]

    def edited(text):
        words = text.split()
        words[-8] = "edited"
        return " ".join(words)

    copies = [(edited(question), answer) for question, answer in long[:30]]
    copies += [(edited(question), edited(answer)) for question, answer in told[:30]]
    assert kept([*long, *told, *copies]) == list(range(200))


def test_answers_must_be_alike():
    question = f"{RULES} {sentence(random.Random(1), 60)}"
    assert kept([(question, "billing"), (question + "!", "billing"), (question + "?", "delivery")]) == [0, 2]
    assert kept([(question, sentence(random.Random(n), 20)) for n in range(3)]) == [0, 1, 2]
    short = "Which wood is best for a table by the window?", sentence(random.Random(9), 40) + ", and for years."
    assert kept([short, (short[0].replace("table", "desk"), short[1].replace("years", "ever"))]) == [0]


def test_a_stock_answer_makes_no_copies():
    rows = [
        (f"{RULES} City: {word}?", STOCK if number % 2 else sentence(random.Random(number), 9))
        for number, word in enumerate(WORDS[:40])
    ]
    assert kept(rows) == list(range(40))


ROUTED = "Thank you for your message. I have passed it on to the repair desk, and a colleague will come by within the hour."
SORRY = "I am sorry, I can only help with questions about your hotel stay."


@pytest.mark.parametrize("answer", [ROUTED, SORRY, STOCK, "I can not help you with that."])
def test_a_stock_answer_to_short_questions_makes_no_copies(answer):
    asked = [
        "The tap drips",
        "My key broke",
        "No light in hall",
        "The bed squeaks at night",
        "What is two squared?",
        "Who made the moon?",
        "Who wins the election next year?",
        "Where can fish sleep at night?",
        "How do I fix my bicycle chain?",
        "How do I fix my old washing machine?",
        "Is it legal to fish in the harbour?",
        "Write a poem about the sea for me",
        "Tell me how to paint an old door",
        "Which of these laptops should I buy for my school work?",
        "Please translate this short letter from Finnish into plain Dutch now",
    ]
    copies = ["the tap  drips!", "who wins the election - next year", "Which of these tablets should I buy for my school work?"]
    rows = [(question, answer) for question in asked]
    assert kept(rows) == list(range(len(rows)))
    for one in rows:
        assert kept([one, rows[0] if one != rows[0] else rows[1]]) == [0, 1]
    if len(answer) > 80:  # else one word of the question is too much of the row
        assert kept(rows + [(question, answer) for question in copies]) == list(range(len(rows)))


def contaminated(prompts, messages, answers=None):
    """Numbers of the messages that hold one of the items."""
    items = [{"suite": "s", "item_id": str(number), "prompt": prompt, "answer": None} for number, prompt in enumerate(prompts)]
    told = [
        {
            "row_id": str(number),
            "messages": json.dumps([{"role": "user", "content": text}]),
            "completion": json.dumps({"role": "assistant", "content": "Let me see."}),
        }
        for number, text in enumerate(messages)
    ]
    with workbench() as connection:
        for macro in MACROS:
            run(connection, macro)
        connection.register("eval_items", pa.Table.from_pylist(items, schema=EVAL_ITEMS))
        connection.register("searched_rows", pa.Table.from_pylist(told))
        find_items(connection, Decontamination())
        return sorted({int(row) for (row,) in connection.table("contaminated").select("interaction_id").fetchall()})


PREAMBLE = (
    "You are the help desk of a bicycle shop. Answer in two sentences at most, name the page of the handbook that you used, "
    "never promise a date, and end with a question to the customer if anything is unclear.\n\nCustomer: "
)
EXAM = "The following are multiple choice questions with answers about the history of mills, and exactly one answer is right. "
STEPS = " Think step by step and put the letter of the right answer after four hash signs at the very end of your answer."


@pytest.mark.parametrize("items", [1, 2, 30])
@pytest.mark.parametrize("count", [3, 10, 40])
@pytest.mark.parametrize(("before", "after"), [(PREAMBLE, ""), ("", "\n\n" + PREAMBLE), (EXAM, STEPS)])
def test_a_preamble_condemns_no_row_and_an_item_is_found(items, count, before, after):
    rng = random.Random(items * count)
    suite = [sentence(rng, count) for _ in range(items)]
    ordinary = [sentence(rng, count) for _ in range(20)]
    messages = [f"{before}{text}{after}" for text in ordinary + suite]
    assert contaminated([f"{before}{text}{after}" for text in suite], messages) == list(range(20, 20 + items))


def test_two_rows_and_a_suite_of_one():
    assert (
        contaminated([PREAMBLE + "My chain jumps."], [PREAMBLE + "The saddle is too low for me.", PREAMBLE + "My lamp is out."])
        == []
    )


def test_an_item_is_found_without_the_suites_preamble():
    rng = random.Random(2)
    suite = [sentence(rng, count) for count in (3, 6, 30)]
    rows = [
        suite[0],
        suite[1] + " please",
        f"A friend asked me: {suite[2]} What now?",
        "Tell me: " + suite[0],
        sentence(rng, 30),
    ]
    assert contaminated([EXAM + text + STEPS for text in suite], rows) == [0, 1, 2]


def test_edited_items_do_not_acquit_each_other():
    item = sentence(random.Random(3), 60).split()
    rows = [" ".join([*item[:place], "edited", *item[place + 1 :]]) + " Please tell me soon." for place in (15, 30, 45)]
    assert contaminated([" ".join(item)], rows) == [0, 1, 2]


def test_items_that_are_the_same_or_hold_each_other_count_whole():
    rng = random.Random(4)
    one, other = sentence(rng, 40), sentence(rng, 40)
    assert contaminated([one, one, other], [one, other, sentence(rng, 40)]) == [0, 1]
    assert contaminated([one, f"{one} {other}"], [one, other, sentence(rng, 40)]) == [0, 1]
