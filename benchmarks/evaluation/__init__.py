"""MillWheel's evaluation, section 8 of its paper, measured again with Millrace on this machine.

``make evaluation``, or ``python -m benchmarks.evaluation --help``. It runs other benchmarks,
each in a process of its own and one after the other, draws a picture for each figure of the paper
into ``docs/pictures``, and writes what was found into ``benchmarks/results`` and, as tables,
in ``docs/benchmarks.md``. One that fails is named there; the others go on.

=========  ============================================  =======================================
part       what the paper shows                          what runs
=========  ============================================  =======================================
latency    figure 13: one stage, strong and exactly      ``latency``, synthetic, 2 and 4 stages,
           once or neither                               all four combinations
scale      figure 14: 20 to 2,000 CPUs                   ``latency``, 1 to 4 tasks a level
lag        figure 15: low-watermark lag of 3 stages      ``watermark_lag``, on both planes
cache      figure 16: CPU by the size of the cache       ``cache_bound``
two-phase  8.4: a key with 90 % of the traffic           ``hot_key``
skew       8.4: what a limit on skew buffers             ``skew``
=========  ============================================  =======================================

With ``--quick`` everything runs for a short time, in less than a quarter of an hour; the figures
are for a look, and are not written into the document unless ``--document`` says so.
"""
