"""The bilevel methods, each as a literal, slow numpy float64 transcription of its rule.

One entry per method: the function that makes the first state, and the step. Samples are explicit:
the caller decides which index batches (and how many factors of a randomised Neumann series) every
step sees.
"""

from __future__ import annotations

from references import (
    bilevel_further as further,
    bilevel_linsys as linsys,
    bilevel_neumann as neumann,
    bilevel_other as other,
)

#: key of ``mindgap.bilevel.METHODS`` -> (first state, step)
REFERENCES = {
    "slip": (linsys.slip_init, linsys.slip),
    "borep": (linsys.borep_init, linsys.borep),
    "soba": (linsys.soba_init, linsys.soba),
    "saba": (linsys.saba_init, linsys.saba),
    "masoba": (linsys.masoba_init, linsys.masoba),
    "srba": (linsys.srba_init, linsys.srba),
    "amigo": (linsys.amigo_init, linsys.amigo),
    "bsa": (neumann.point_init, neumann.bsa),
    "alset": (neumann.point_init, neumann.alset),
    "ttsa": (neumann.point_init, neumann.ttsa),
    "stocbio": (neumann.point_init, neumann.stocbio),
    "mrbo": (neumann.storm_init, neumann.mrbo),
    "sustain": (neumann.storm_init, neumann.sustain),
    "vrbo": (neumann.vrbo_init, neumann.vrbo),
    "svrb": (other.svrb_init, other.svrb),
    "f2sa": (other.f2sa_init, other.f2sa),
    "fsla": (further.fsla_init, further.fsla),
    "pzobo": (further.w_init, further.pzobo),
    "pbgd": (further.w_init, further.pbgd),
    "bome": (further.w_init, further.bome),
    "meha": (further.w_init, further.meha),
    "sama": (further.point_init, further.sama),
    "f2sa-p": (further.f2sap_init, further.f2sap),
    "n2sba": (further.w_init, further.n2sba),
    "spaba": (further.spaba_init, further.spaba),
    "adambo": (further.adambo_init, further.adambo),
    "accbo": (further.accbo_init, further.accbo),
}
