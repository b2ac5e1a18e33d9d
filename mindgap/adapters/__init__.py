"""Other people's trainers: the monitor inside Lightning's and Hugging Face's loops.

``mindgap.adapters.lightning`` needs the extra ``mindgap[lightning]``,
``mindgap.adapters.transformers`` the extra ``mindgap[transformers]``; both import their library
when their function is called.
"""
