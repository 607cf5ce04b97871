"""Mail to a shop, each with the line of JSON that the shop files it under: the traffic of the demo on a real model. What the
held-out mails ask, and what they are about, occurs in no other mail."""

import json
import random
from collections.abc import Sequence

from pipelines.demo.records import DemoTurn

_ITEMS = (
    "desk lamp, wool blanket, coffee grinder, rain jacket, garden hose, oak shelf, bike helmet, tea kettle, floor rug, "
    "phone case, bread knife, wall clock, yoga mat, office chair, table fan, picture frame, cast iron pan, camping tent, "
    "water filter, toy train, guitar stand, bath towel, reading light, salad bowl, travel bag, plant pot, sewing machine, "
    "fishing rod, cutting board, spice rack, paper shredder, laptop sleeve, bean bag, card game, soup ladle, winter coat, "
    "step ladder, pepper mill, dog basket, swimming pool, piano stool, garden bench, letter box, alarm clock, door mat, "
    "mixing bowl, bed frame, snow shovel, hair dryer, tool box, running belt, sun hat"
)
_NAMES = "Ada Lin Omar Eva Noah Mia Ivan Rosa Kofi Yuki Lena Samir Paula Jonas Aisha Marco"
ITEMS, NAMES = _ITEMS.split(", "), _NAMES.split()
"""The last items occur in held-out mails only."""
REQUESTS = {
    "returns": (
        "I would like to send back the {item}, it does not fit.",
        "The {item} is not what I expected. How do I return it?",
        "Can I still return the {item}? I bought it two weeks ago.",
        "Please tell me where to send the {item} back.",
        "I changed my mind about the {item} and want my money back.",
        "The {item} is too small for us, we want to give it back.",
        "Where do I get a label to return the {item}?",
        "I no longer need the {item}. Will you take it back?",
        "The colour of the {item} does not match our room, so it goes back.",
        "I have sent the {item} back. When do I get my money?",
        "How many days do I have to return the {item}?",
        "Please pick up the {item}, I do not want to keep it.",
        "The {item} was a gift, and I would rather exchange it.",
        "We ordered one {item} too many and want to return it.",
        "My husband already has a {item}. May I send this one back?",
    ),
    "delivery": (
        "The {item} was to arrive on Monday and is still not here.",
        "Where is my {item}? The tracking page has not changed for days.",
        "The driver left the {item} at the wrong house.",
        "When will the {item} be delivered?",
        "The parcel with the {item} seems to be lost.",
        "I am away next week, please deliver the {item} later.",
        "Has the {item} been sent already?",
        "The {item} has been on its way for ten days.",
        "Please change the delivery address of the {item}.",
        "I was not at home when the {item} came. Will the driver come again?",
        "The neighbours did not take the {item}. Where is the parcel now?",
        "Can you bring the {item} on Saturday?",
        "Only half of the parcel arrived, the {item} was not in it.",
        "Tracking says that the {item} was delivered, but nobody got it.",
        "Could you send the {item} to my office address?",
    ),
    "repair": (
        "The {item} broke on the first day.",
        "The {item} stopped working after a week.",
        "There is a crack in the {item}.",
        "A part of the {item} is missing, so I cannot use it.",
        "The {item} makes a strange noise and smells burnt.",
        "The {item} came with a scratch along the side.",
        "The {item} fell apart when I touched it.",
        "My {item} is broken. Can you mend it?",
        "The {item} leaks and makes everything wet.",
        "The handle of the {item} is loose.",
        "The {item} arrived damaged.",
        "After one wash the {item} is full of holes.",
        "The {item} worked for a month and is now dead.",
        "The {item} does not turn on any more.",
        "One side of the {item} came off yesterday.",
    ),
    "billing": (
        "I was charged twice for the {item}.",
        "The invoice for the {item} shows the wrong price.",
        "Please send me an invoice for the {item}.",
        "My card was charged, but there is no order for the {item} in my account.",
        "The discount code was not taken off the price of the {item}.",
        "I paid for the {item} by bank transfer, but it is still marked as open.",
        "Your bill for the {item} has the old address on it.",
        "I have not got my receipt for the {item} yet.",
        "Why did you take the money for the {item} before it was sent?",
        "The tax on the bill for the {item} is wrong.",
        "I want to pay for the {item} in two parts.",
        "You charged me for three pieces of the {item}, I bought one.",
        "My payment for the {item} was refused, but the money is gone.",
        "Why is there a fee of 9 dollars on the bill for the {item}?",
        "Our company name is missing on the invoice for the {item}.",
    ),
    "sales": (
        "Do you have the {item} in blue?",
        "How much is the {item} if I buy ten of them?",
        "Is the {item} suitable for children?",
        "When will the {item} be back in stock?",
        "What is the {item} made of?",
        "Which size of the {item} would you recommend?",
        "Can I see the {item} in your shop?",
        "Is there a discount on the {item} for students?",
        "How long does a {item} usually last?",
        "I am looking for a {item} as a present. What do you suggest?",
        "Is the {item} still made?",
        "Do you sell spare parts for the {item}?",
        "What is the difference between the two kinds of {item}?",
        "Does the {item} come with a guarantee?",
        "Is there a cheaper {item} than the one on your page?",
    ),
}
"""Team -> what it is asked. The last two of each occur in held-out mails only."""
ORDERS = (
    "My order number is {order}.",
    "Order {order}.",
    "It is order {order}.",
    "The number of the order is {order}.",
    "({order})",
    "Reference: {order}.",
)
HURRY = (
    "I need an answer today.",
    "This is urgent!",
    "Please hurry, it is for a party tomorrow.",
    "I have to know this by tonight.",
    "It cannot wait any longer.",
)
CALM = ("There is no hurry.", "Take your time.", "Thank you in advance.", "Thanks for your help.", "Have a nice day.", "")
GREETINGS = ("Hello,", "Hi,", "Dear team,", "Good morning,", "Hi there,", "")
NAMES = [
    "Ada",
    "Lin",
    "Omar",
    "Eva",
    "Noah",
    "Mia",
    "Ivan",
    "Rosa",
    "Kofi",
    "Yuki",
    "Lena",
    "Samir",
    "Paula",
    "Jonas",
    "Aisha",
    "Marco",
]
UNSEEN_ITEMS, UNSEEN_REQUESTS = 8, 2


def mails(count: int, rng: random.Random, held_out: bool = False) -> list[DemoTurn]:
    """Different mails, each with its answer."""
    items = ITEMS[-UNSEEN_ITEMS:] if held_out else ITEMS[:-UNSEEN_ITEMS]
    part = slice(-UNSEEN_REQUESTS, None) if held_out else slice(0, -UNSEEN_REQUESTS)
    turns: dict[str, DemoTurn] = {}
    while len(turns) < count:
        team = rng.choice(list(REQUESTS))
        turn = _mail(team, rng.choice(REQUESTS[team][part]), rng.choice(items), rng)
        turns.setdefault(turn.question, turn)
    return list(turns.values())


def _mail(team: str, request: str, item: str, rng: random.Random) -> DemoTurn:
    has_order, urgent = rng.random() < (0.3 if team == "sales" else 0.85), rng.random() < 0.5
    order = f"{rng.choice('ABCDEFGHKLMNPRST')}-{rng.randrange(10_000, 100_000)}" if has_order else None
    sentences: Sequence[str] = [request.format(item=item), *([rng.choice(ORDERS).format(order=order)] if order else [])]
    if rng.random() < 0.5:
        sentences = sentences[::-1]
    body = " ".join(filter(None, [*sentences, rng.choice(HURRY if urgent else CALM)]))
    question = "\n".join(filter(None, [rng.choice(GREETINGS), body, rng.choice(NAMES)]))
    answer = json.dumps({"team": team, "item": item, "order": order, "urgent": urgent})
    return DemoTurn(None, "mail", question, answer)
