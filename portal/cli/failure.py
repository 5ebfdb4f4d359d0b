"""The one way in which a command fails: a sentence, and what to do next."""

EXIT_FAILURE = 2
# What reading an answer comes to that is no answer of Dockyard's, or one of a version that says other things.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Answers:
    """Whether this process has had an answer that it now makes something of. Before, what goes wrong is ours alone."""

    came = False


class Failure(Exception):
    """Shown on stderr as it stands; the command ends with status 2."""

    def __init__(self, sentence: str, remedy: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
