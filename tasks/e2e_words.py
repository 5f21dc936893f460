"""The words of the task e2e: what a person might need to speak about where to eat, written down without the records."""

_TEXT = """
a an the this that these those it its i you he she we they me him her us them my your our their who whom whose which
what where when why how there here and or but nor so yet if because since although though while as than then also too
not no yes only just even still very quite rather really more most less least much many few little some any all both
each every either neither other another such same own of in on at by to from with without for about into over under
between near nearby next beside close around along across through off out up down outside inside within before after
during until opposite away is are was were be been being am has have had having do does did doing will would can could
may might must should doesn don isn won t s re ve ll
serve serves served serving offer offers offered offering provide provides provided providing find finds found locate
located lies sit sits situated based set stands get gets got give gives given go goes going come comes coming visit try
eat eating eats dine dining drink drinking drinks enjoy enjoys enjoyed look looking looks want wants wanting like likes
liked love loves need needs know known call called named rate rated rates rating ratings score scored scores cost costs
costing price priced prices pricing range ranges ranging ranged allow allows allowed welcome welcomes welcoming cater
caters catering specialise specialises specialize specializes specialising specializing sell sells selling make makes
made take brings bring boast boasts feature features featuring include includes including recommend recommended
consider considered receive received receives earned reviewed review reviews suit suits suited suitable say says
restaurant restaurants pub pubs coffee shop shops cafe bar place places venue establishment eatery spot house diner
location area areas part city centre center town river riverside bank banks side street food foods meal meals dish
dishes cuisine menu wine wines cheese fruit fruits beer tea snack snacks breakfast lunch dinner sushi pasta pizza curry
fish chips burger burgers spaghetti noodles family families kid kids child children adult adults people person customer
customers guest guests friend friends everyone anyone star stars point points scale quality service staff atmosphere
environment setting view pound pounds euro euros money value budget night day evening time home experience option
options choice selection variety type style kind name way bit lot top end
friendly unfriendly good great best better nice excellent average low lower high higher highly moderate moderately mid
cheap cheaper expensive inexpensive affordable affordably reasonable reasonably pricey costly poor poorly bad decent
fine well delicious tasty fresh local traditional authentic popular famous lovely beautiful perfect ideal wonderful
amazing fantastic superb fun relaxing relaxed casual comfortable cosy cozy quiet busy small large big upscale fancy new
old open free oriented orientated non fast slow right however despite currently unfortunately
english british french italian chinese japanese indian american european asian
one two three four five six seven eight nine ten twenty thirty 20 25 30 10 50
"""
WORDS = tuple(_TEXT.split())
