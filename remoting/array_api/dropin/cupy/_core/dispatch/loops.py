"""Loops of CuPy 14.2's ufuncs, in the order in which CuPy tries them (``ufunc.types``)."""

import numpy as np


class Loop:
    """One type signature of a ufunc."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, text: str) -> None:
        left, _, right = text.partition("->")
        self.inputs = tuple(np.dtype(char) for char in left)
        self.outputs = tuple(np.dtype(char) for char in right)


LOOPS = """
absolute ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d F->f D->d
add ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d FF->F
 DD->D
arccos e->e f->f d->d F->F D->D
arccosh e->e f->f d->d F->F D->D
arcsin e->e f->f d->d F->F D->D
arcsinh e->e f->f d->d F->F D->D
arctan e->e f->f d->d F->F D->D
arctan2 ee->e ff->f dd->d FF->F DD->D
arctanh e->e f->f d->d F->F D->D
bitwise_and ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
bitwise_count b->B B->B h->B H->B i->B I->B l->B L->B q->B Q->B
bitwise_or ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
bitwise_xor ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
cbrt e->e f->f d->d
ceil ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d
conjugate b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d F->F D->D
copysign ee->e ff->f dd->d FF->F DD->D
cos e->e f->f d->d F->F D->D
cosh e->e f->f d->d F->F D->D
deg2rad e->e f->f d->d
divmod bb->bb BB->BB hh->hh HH->HH ii->ii II->II ll->ll LL->LL qq->qq QQ->QQ ee->ee ff->ff dd->dd
equal ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->? FF->? DD->? VV->?
exp e->e f->f d->d F->F D->D
exp2 e->e f->f d->d F->F D->D
expm1 e->e f->f d->d F->F D->D
fabs e->e f->f d->d
fix ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d
float_power dd->d FF->D DD->D
floor ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d
floor_divide bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d
fmax ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d FF->F
 DD->D
fmin ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d FF->F
 DD->D
fmod bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d
frexp e->ei f->fi d->di
gcd ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
greater ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->? FF->? DD->?
greater_equal ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->? FF->? DD->?
heaviside ee->e ff->f dd->d
hypot ee->e ff->f dd->d FF->F DD->D
i0 e->e f->f d->d F->F D->D
invert ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q
isfinite e->? f->? d->? F->? D->?
isinf e->? f->? d->? F->? D->?
isnan e->? f->? d->? F->? D->?
lcm ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
ldexp ei->e fi->f el->e fl->f di->d dq->d
left_shift bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
less ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->? FF->? DD->?
less_equal ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->? FF->? DD->?
log e->e f->f d->d F->F D->D
log10 e->e f->f d->d F->F D->D
log1p e->e f->f d->d F->F D->D
log2 e->e f->f d->d F->F D->D
logaddexp ee->e ff->f dd->d
logaddexp2 ee->e ff->f dd->d
logical_and ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->?
logical_not ?->? b->? B->? h->? H->? i->? I->? l->? L->? q->? Q->? e->? f->? d->?
logical_or ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->?
logical_xor ??->? bb->? BB->? hh->? HH->? ii->? II->? ll->? LL->? qq->? QQ->? ee->? ff->? dd->?
maximum ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d FF->F
 DD->D
minimum ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d FF->F
 DD->D
modf e->ee f->ff d->dd
multiply ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d
 FF->F DD->D
negative ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d F->F D->D
nextafter ee->e ff->f dd->d FF->F DD->D
not_equal ??->? qq->? QQ->? qQ->? Qq->? ee->? ff->? dd->? FF->? DD->? VV->?
positive ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d F->F D->D
power ??->b bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d FF->F
 DD->D
rad2deg e->e f->f d->d
reciprocal b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d F->F D->D
remainder bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d
right_shift bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
rint e->e f->f d->d F->F D->D
sign b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d F->F D->D
signbit e->? f->? d->?
sin e->e f->f d->d F->F D->D
sinc e->e f->f d->d F->F D->D
sinh e->e f->f d->d F->F D->D
sqrt e->e f->f d->d F->F D->D
square b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d F->F D->D
subtract ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e ff->f dd->d
 FF->F DD->D
tan e->e f->f d->d F->F D->D
tanh e->e f->f d->d F->F D->D
true_divide qq->d qQ->d Qq->d QQ->d ee->e ff->f dd->d FF->F DD->D
trunc ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e f->f d->d
"""
