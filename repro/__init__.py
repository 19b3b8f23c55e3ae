"""The nouns of eagleeye (Case, Trace, Verdict, Finding), and what is done with a failing case."""
