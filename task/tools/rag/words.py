"""Words that state nothing by themselves, for the languages that answers come in most."""

from __future__ import annotations

_FUNCTION_WORDS = """
a an and are as at be been being by can could did do does for from had has have he her his how i if in into is it its
may might more most must of on or our she should so such than that the their them then there these they this those to
was we were what when where which who why will with would you your also any all each both about between
according document excerpt page section states says mentioned stated
der die das den dem des ein eine einer und ist sind wird werden von zu mit auf für im am als auch
le la les du un une et est sont dans pour par sur que qui au aux
el los las una y es son en con por para del al
и в на с по что это как для из от до он она они
"""
_NEGATIONS = """
not no never none nobody nothing neither nor cannot isn't aren't doesn't don't won't can't mustn't wasn't
weren't didn't nicht kein keine keinen keiner nie niemals ne pas jamais no nunca не нет никогда ні ніколи
"""
_LACKING = "without ohne sans sin без senza sem bez"
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
LACKING = frozenset(_LACKING.split())
NEGATIONS = frozenset(_NEGATIONS.split()) | LACKING
