"""An environment for recipes/rft-tools.yaml: word problems whose answer is a number, with a tool that calculates.

Rows are those of `datasets.rl_prompts` with `task: number`: each brings `answer`. The model may call `calculate`, says its
answer in its last message, and gets 1 where the last number in it is right.
"""

import ast
import operator
import re

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Sums:
    def reset(self, row):
        self.answer, self.calls = number(row["answer"]), 0
        return "\nUse the tool for every calculation, and end with the number."

    def calculate(self, expression: str) -> str:
        """Calculates an expression of numbers with + - * / and parentheses.

        Args:
            expression: For example (12 + 8) * 3
        """
        self.calls += 1
        try:
            return f"{value(ast.parse(expression, mode='eval').body):g}"
        except (SyntaxError, ZeroDivisionError, RecursionError, OverflowError) as error:
            raise ValueError("this cannot be calculated") from error  # what the model did wrong, for it to read

    def reward(self, messages):
        """Each part is stored for every attempt; `score` is what is learnt from."""
        numbers = NUMBER.findall(messages[-1].get("content") or "")
        right = bool(numbers) and number(numbers[-1]) == self.answer
        return {"score": float(right), "calls": self.calls}


def number(text):
    return float(NUMBER.findall(str(text))[-1].replace(",", ""))


def value(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("only numbers, + - * / and parentheses")
