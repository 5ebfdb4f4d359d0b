"""The one way in which a command fails: a sentence, and what to do next."""

EXIT_FAILURE = 2
# What reading an answer comes to that is no answer of Dockyard's, or one of a version that says other things.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Failure(Exception):
    """Shown on stderr as it stands; the command ends with status 2."""

    def __init__(self, sentence: str, remedy: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
